// What the box office says, and how it is asked. Money is in minor units, spans are in milliseconds.

import { ask, key, Problem, send } from '../shared/http';

export type SeatState = 'free' | 'held' | 'paying' | 'sold' | 'blocked';

export interface Seat {
  id: string;
  number: string | number;
  price: number;
  x?: number;
  y?: number;
}

export interface Area {
  id: string;
  name?: string;
  capacity: number;
  price: number;
}

export interface Plan {
  event_id: string;
  name: string;
  currency: string;
  sections: { id: string; name?: string; rows: { id: string; seats: Seat[] }[] }[];
  areas: Area[];
}

export interface Office {
  demo: boolean;
  default_event: string | null;
}

export interface EventLine {
  event_id: string;
  name: string;
  currency: string;
  on_sale: boolean;
  frozen: boolean;
  totals?: Totals;
}

export interface EventSettings extends EventLine {
  ttl_ms?: number;
  max_hold_ms?: number;
  pay_ms?: number;
  per_buyer?: number;
}

export type Totals = { seats: number } & Record<SeatState, number>;

/** Staff are also told who holds a seat, and since when. */
export interface SeatLine {
  id: string;
  state: SeatState;
  hold_id?: string;
  buyer?: string;
  age_ms?: number;
  renewals?: number;
  remaining_ms?: number;
  reason?: string;
  order_id?: string;
}

export interface Availability {
  seq: number;
  seats: SeatLine[];
  areas: { id: string; free: number }[];
  totals?: Totals;
}

export interface SeatsEvent {
  seq: number;
  at?: string | number;
  kind?: string;
  seats?: { id: string; state: SeatState }[];
  areas?: { id: string; free: number }[];
  hold_id?: string;
  order_id?: string;
}

export type HoldState = 'active' | 'paying' | 'sold' | 'released' | 'lapsed';

export interface Payment {
  payment_ref?: string;
  state?: string;
  outcome?: string;
}

export interface Hold {
  hold_id: string;
  hold_key?: string;
  event_id?: string;
  state?: HoldState;
  seats?: { id: string; token: string }[];
  areas?: { id: string; qty: number }[];
  remaining_ms?: number;
  renewable_ms?: number;
  total?: number;
  payment?: Payment | null;
  /** Where to pay, while it is being paid for: the provider's own page. */
  pay_url?: string;
  order_id?: string | null;
  /** Where money that came late is. */
  resolution?: Resolution | null;
  /** All money that came for it and is not simply its order's. */
  money?: Money[];
}

export type MoneyState = 'received' | 'sold' | 'offered' | 'refund_due' | 'refunded' | 'stuck' | 'closed' | 'cancel_due' | 'cancelled';

export interface Money {
  payment_ref?: string;
  amount: number;
  state: MoneyState;
  steps?: { state: string; note: string }[];
}

export interface Resolution {
  state: MoneyState;
  /** The hold on seats that are offered instead: opened by the same key, to be confirmed with the same payment. */
  offer?: string;
  seats?: string[];
  steps?: { state: string; note: string }[];
}

export interface Order {
  order_id: string;
  seats: (string | { id: string })[];
  areas?: { id: string; qty: number }[];
  total: number;
  late?: boolean;
  /** What the buyer is owed; negative: what they owe. */
  owed?: number;
  paid?: number;
  /** What it cost when it was sold. null: an order of a version that did not record it. */
  sold_for?: number | null;
  payment_ref?: string;
  buyer?: string;
  /** Who said that the money came. null: it cost nothing. */
  source?: 'provider' | 'key' | null;
  /** Of a payment that was only authorised before the sale. */
  capture?: Capture | null;
}

export interface Capture {
  state: 'due' | 'captured' | 'failed' | 'cancelled';
  amount: number;
}

export interface Conflict {
  /** Of an area the id of the area. */
  seat?: string;
  area?: string;
  reason: string;
}

export interface Alternative {
  seats: (string | { id: string })[];
  total?: number;
}

export const idOf = (seat: string | { id: string }): string => (typeof seat === 'string' ? seat : seat.id);

const event = (id: string): string => `/v1/events/${encodeURIComponent(id)}`;
export const streamOf = (id: string): string => `${event(id)}/stream`;
export const holdPath = (id: string, action = ''): string =>
  `/v1/holds/${encodeURIComponent(id)}${action === '' ? '' : `/${action}`}`;
export const holdsPath = (id: string): string => `${event(id)}/holds`;

/** null: this server sells no seats. */
export async function office(): Promise<Office | null> {
  try {
    return (await ask('/v1/boxoffice', {}, null)) as Office;
  } catch (error) {
    if (error instanceof Problem && error.status === 404) return null;
    throw error;
  }
}

export class Api {
  constructor(readonly secret: () => string | null = key.get) {}

  get(path: string, headers: Record<string, string> = {}): Promise<unknown> {
    return ask(path, { headers }, this.secret());
  }

  async events(): Promise<EventLine[]> {
    return ((await this.get('/v1/events')) as { events: EventLine[] }).events;
  }

  async event(id: string): Promise<EventSettings> {
    return (await this.get(event(id))) as EventSettings;
  }

  async plan(id: string): Promise<Plan> {
    return (await this.get(`${event(id)}/map`)) as Plan;
  }

  async availability(id: string, detail: boolean): Promise<Availability> {
    return (await this.get(`${event(id)}/availability${detail ? '?detail=1' : ''}`)) as Availability;
  }

  /** A POST has a key of its own: told twice, it is done once. The caller keeps the key through its retries. */
  write(method: 'POST' | 'PUT', path: string, body: unknown, idem: string, headers: Record<string, string> = {}) {
    const init = {
      method,
      body: JSON.stringify(body ?? {}),
      headers: { 'Content-Type': 'application/json', 'Idempotency-Key': idem, ...headers },
    };
    return ask(path, init, this.secret());
  }

  async text(path: string): Promise<string> {
    return (await send(path, {}, this.secret())).text();
  }
}

/** Unguessable, also where `crypto.randomUUID` is not given: pages that came without TLS. */
export function freshId(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, '0')).join('');
}
