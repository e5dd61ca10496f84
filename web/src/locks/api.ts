// What the server says of leases, and how it is asked.

import { now } from '../shared/clock';
import { ask, Problem } from '../shared/http';

export type Mode = 'exclusive' | 'shared' | 'permits';

interface WireResource {
  name: string;
  mode: Mode;
  permits_used?: number;
  capacity?: number;
  holders: { holder: string; token: string | null; since_ms: number; remaining_ms: number | null }[];
  holders_total: number;
  waiters: { holder: string; waiting_ms: number }[];
  queue_len: number;
}

export interface Holder {
  holder: string;
  token: string | null;
  /** Moments of the page's clock. */
  since: number;
  /** null: not known yet. */
  ends: number | null;
}

export interface Waiter {
  holder: string;
  since: number;
}

export interface Resource {
  name: string;
  /** null: an event told of it, and the listing has not yet. */
  mode: Mode | null;
  used: number | null;
  capacity: number | null;
  /** The first of those who hold it; `holdersTotal` counts all. */
  holders: Holder[];
  holdersTotal: number;
  /** The first of those who wait, in order; `queueLen` counts all. */
  waiters: Waiter[];
  queueLen: number;
}

export interface Page {
  resources: Resource[];
  more: boolean;
}

export const promiseNames = ['durable', 'fencing', 'fair', 'never_early', 'outlives_process'] as const;
export type PromiseName = (typeof promiseNames)[number];

export interface Ending {
  kind: 'lapsed' | 'revoked';
  resources: string[];
  holder: string;
  token: string | null;
  reason?: string;
  ago_ms: number;
}

export interface Status {
  version: string;
  engine: string;
  promises: Record<PromiseName, boolean>;
  /** null: this engine does not count them. */
  leases: number | null;
  waiters: number | null;
  uptime_ms: number;
  rates: { acquire_per_s: number; release_per_s: number; lapse_per_s: number; refused_per_s: number };
  recent: Ending[];
  auth: 'none' | 'required';
  role: string[];
}

function received(wire: WireResource, at: number): Resource {
  return {
    name: wire.name,
    mode: wire.mode,
    used: wire.permits_used ?? null,
    capacity: wire.capacity ?? null,
    holders: wire.holders.map(({ holder, token, since_ms, remaining_ms }) => ({
      holder,
      token,
      since: at - since_ms,
      ends: remaining_ms === null ? null : at + remaining_ms,
    })),
    holdersTotal: wire.holders_total,
    waiters: wire.waiters.map(({ holder, waiting_ms }) => ({ holder, since: at - waiting_ms })),
    queueLen: wire.queue_len,
  };
}

export async function list(prefix: string, after: string | null, limit: number): Promise<Page> {
  const query = new URLSearchParams({ limit: String(limit) });
  if (prefix !== '') query.set('prefix', prefix);
  if (after !== null) query.set('after', after);
  const said = (await ask(`/v1/resources?${query}`)) as { resources: WireResource[]; next: string | null };
  const at = now();
  return { resources: said.resources.map((wire) => received(wire, at)), more: said.next !== null };
}

/** Addresses know `.` and `..` as steps, so a browser cannot name a resource that is called so. */
export const addressable = (name: string): boolean => name !== '.' && name !== '..';

const addressOf = (name: string): string => `/v1/resources/${encodeURIComponent(name)}`;

/** One resource; null when nobody holds or awaits it. */
export async function inspect(name: string): Promise<Resource | null> {
  if (!addressable(name)) {
    const page = await list(name, null, 1);
    return page.resources.find((found) => found.name === name) ?? null;
  }
  try {
    const wire = (await ask(addressOf(name))) as WireResource;
    return wire.holders_total === 0 && wire.queue_len === 0 ? null : received(wire, now());
  } catch (error) {
    if (error instanceof Problem && error.status === 404) return null;
    throw error;
  }
}

export async function status(): Promise<Status> {
  return (await ask('/v1/status')) as Status;
}

/** Ends every lease on a resource. Says how many. */
export async function revoke(name: string, reason: string): Promise<number> {
  const said = (await ask(addressOf(name), {
    method: 'DELETE',
    headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify({ reason }),
  })) as { revoked: number };
  return said.revoked;
}
