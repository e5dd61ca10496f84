// What staff know of one event, and what they can do about it. Asked with an operator's key, where the server wants one.

import { key, Problem, sentence } from '../shared/http';
import { Api, freshId, type EventLine, type EventSettings, type Order, type Plan } from '../office/api';
import { Feed } from '../office/feed';
import { hall, type Hall } from '../office/hall';
import { price } from '../office/money';

/** Fields that the server may add are shown as they come. */
export type Fields = Record<string, unknown>;

export interface Report {
  totals?: Record<string, number>;
  by_section?: (Fields & { section?: string })[] | Record<string, Fields>;
  late_payments?: Fields[];
  stuck_payments?: Fields[];
  conflict_rate?: number;
  sweeper_lag_ms?: number | null;
  /** The first 1,000. */
  orders?: Order[];
}

export interface Checks {
  ok: boolean;
  checks: { name: string; ok: boolean; detail?: string }[];
}

const calm = 4000;
const eager = 400;
/** More happened to no seat, unless somebody plays with it. */
const mostEntries = 10_000;

export class Desk {
  needKey: string | null | false = false;
  wrong: string | null = null;
  events: EventLine[] = [];
  settings: EventSettings | null = null;
  hall: Hall | null = null;
  plan: Plan | null = null;
  feed: Feed | null = null;
  report: Report | null = null;
  checks: Checks | null = null;
  /** Marked in the map for what is done next. */
  readonly marked = new Set<string>();
  /** The seat whose history is open. */
  open: string | null = null;
  history: Fields[] | null = null;
  /** The order that the open seat is in. */
  order: Order | null = null;
  note = '';

  private readonly api = new Api();
  private readonly listeners = new Set<() => void>();
  private timers: { notify?: number; look?: number } = {};
  private due = Infinity;
  private event: string | null = null;

  async start(): Promise<void> {
    await this.attempt(async () => {
      this.events = await this.api.events();
      this.needKey = false;
      const wanted = new URLSearchParams(location.hash.slice(1)).get('event');
      const first = this.events.find(({ event_id }) => event_id === wanted) ?? this.events[0];
      if (first !== undefined) await this.choose(first.event_id);
    });
  }

  useKey(value: string): void {
    key.set(value);
    void this.start();
  }

  forgetKey(): void {
    key.forget();
    this.closeAll();
    this.needKey = null;
    this.changed();
  }

  async choose(event: string): Promise<void> {
    this.closeAll();
    this.event = event;
    history.replaceState(null, '', `#event=${encodeURIComponent(event)}`);
    await this.attempt(async () => {
      const [plan, settings] = await Promise.all([this.api.plan(event), this.api.event(event)]);
      if (this.event !== event) return;
      this.plan = plan;
      this.settings = { ...settings, currency: settings.currency ?? plan.currency };
      this.hall = hall(plan);
      this.feed = new Feed(this.api, event, true, {
        changed: () => this.changed(),
        // Also where the seat was seen to change before: the whole may be ahead of its news, and of the history.
        news: (said) => {
          if (said.seats?.some(({ id }) => id === this.open) === true) void this.readHistory();
          this.lookIn(eager);
        },
        refused: (problem) => this.failed(problem),
        opened: () => this.lookIn(0),
      });
      this.feed.start();
      this.lookIn(0);
    });
  }

  private closeAll(): void {
    this.feed?.stop();
    this.feed = null;
    this.event = null;
    this.plan = null;
    this.hall = null;
    this.settings = null;
    this.report = null;
    this.checks = null;
    this.open = null;
    this.marked.clear();
    window.clearTimeout(this.timers.look);
    this.due = Infinity;
  }

  // --- looking

  /** Ages, renewals and figures make no news: they are asked for again, soon after news and now and then otherwise. */
  private lookIn(ms: number): void {
    const at = performance.now() + ms;
    if (at >= this.due) return;
    this.due = at;
    window.clearTimeout(this.timers.look);
    this.timers.look = window.setTimeout(() => void this.look(), ms);
  }

  private async look(): Promise<void> {
    const { event } = this;
    this.due = Infinity;
    if (event === null) return;
    const asked = performance.now();
    if (!document.hidden) {
      await this.attempt(async () => {
        const [report, settings] = await Promise.all([
          this.api.get(this.path('report')) as Promise<Report>,
          this.api.event(event),
          this.feed?.whole(),
        ]);
        if (this.event !== event) return;
        this.report = report;
        this.settings = { ...this.settings, ...settings };
      });
      // News that were missed had entries too.
      if (this.event === event) await this.readHistory();
    }
    // A server that takes long is asked less often.
    if (this.event === event) this.lookIn(Math.max(calm, (performance.now() - asked) * 10));
  }

  private path(rest: string): string {
    return `/v1/events/${encodeURIComponent(this.event ?? '')}/${rest}`;
  }

  show(seat: string | null): void {
    this.open = seat;
    this.history = null;
    this.order = null;
    this.changed();
    if (seat !== null) void this.readHistory();
  }

  private async readHistory(): Promise<void> {
    const seat = this.open;
    if (seat === null) return;
    await this.attempt(async () => {
      const id = this.feed?.seats.line(seat)?.order_id;
      const [all, order] = await Promise.all([
        this.audit(seat),
        id === undefined ? null : (this.api.get(`/v1/orders/${encodeURIComponent(id)}`) as Promise<Order>),
      ]);
      if (this.open !== seat) return;
      this.history = all;
      this.order = order;
    });
  }

  /** All of it, the newest first. */
  private async audit(seat: string): Promise<Fields[]> {
    const all: Fields[] = [];
    let since: string | number | null = 0;
    while (since !== null && all.length < mostEntries) {
      const query = new URLSearchParams({ seat, since: String(since), limit: '1000' });
      const said = (await this.api.get(this.path(`audit?${query}`))) as { entries?: Fields[]; next?: number | null };
      all.push(...(said.entries ?? []));
      since = said.next ?? null;
    }
    return all.reverse();
  }

  async readChecks(): Promise<void> {
    await this.attempt(async () => {
      this.checks = (await this.api.get(this.path('invariants'))) as Checks;
    });
  }

  async csv(of: 'report' | 'audit'): Promise<string | null> {
    return this.attempt(() => this.api.text(this.path(`${of}?format=csv`)));
  }

  // --- doing. Each throws what the server refused, so that the question stays open.

  async block(reason: string): Promise<void> {
    const seats = [...this.marked].filter((id) => this.feed?.seats.state(id) === 'free');
    await this.api.write('PUT', this.path('blocks'), { block: seats, unblock: [], reason }, freshId());
    this.done(`Blocked ${seats.length}.`);
  }

  async unblock(reason: string): Promise<void> {
    const seats = [...this.marked].filter((id) => this.feed?.seats.state(id) === 'blocked');
    await this.api.write('PUT', this.path('blocks'), { block: [], unblock: seats, reason }, freshId());
    this.done(`Unblocked ${seats.length}.`);
  }

  async release(seat: string, reason: string): Promise<void> {
    await this.api.write('POST', this.path(`seats/${encodeURIComponent(seat)}/release`), { reason }, freshId());
    this.done('Released.');
    void this.readHistory();
  }

  /** null: all of it. */
  async voidOrder(order: string, seats: string[] | null, reason: string): Promise<void> {
    const body = seats === null ? { reason } : { seats, reason };
    const said = (await this.api.write('POST', `/v1/orders/${encodeURIComponent(order)}/void`, body, freshId())) as Order;
    this.done(`Voided. ${this.owed(said)}`);
    void this.readHistory();
  }

  async moveOrder(order: string, from: string, to: string, reason: string): Promise<void> {
    const body = { moves: [{ from, to }], reason };
    const said = (await this.api.write('POST', `/v1/orders/${encodeURIComponent(order)}/move`, body, freshId())) as Order;
    this.done(`Moved to ${to}. ${this.owed(said)}`);
    void this.readHistory();
  }

  private owed({ owed = 0 }: Order): string {
    const currency = this.settings?.currency ?? '';
    if (owed > 0) return `${price(owed, currency)} go back to the buyer.`;
    return owed < 0 ? `The buyer owes ${price(-owed, currency)}.` : 'No money is owed.';
  }

  /** Money that waits for somebody: given back, or settled by hand. */
  async settle(refund: string, how: 'refund' | 'close', reason: string): Promise<void> {
    await this.api.write('POST', this.path(`payments/${encodeURIComponent(refund)}/${how}`), { reason }, freshId());
    this.done(how === 'refund' ? 'It goes back.' : 'Settled by hand.');
  }

  async freeze(on: boolean, reason: string): Promise<void> {
    await this.api.write('POST', this.path(on ? 'freeze' : 'unfreeze'), { reason }, freshId());
    if (this.settings !== null) this.settings = { ...this.settings, frozen: on };
    this.done(on ? 'Sales are stopped.' : 'Sales go on.');
  }

  private done(note: string): void {
    this.marked.clear();
    this.note = note;
    this.lookIn(0);
    this.changed();
  }

  mark(ids: string[], on: boolean): void {
    for (const id of ids) {
      if (on) this.marked.add(id);
      else this.marked.delete(id);
    }
    this.changed();
  }

  // --- failing and telling

  private async attempt<T>(run: () => Promise<T>): Promise<T | null> {
    try {
      const said = await run();
      this.wrong = null;
      return said;
    } catch (error) {
      this.failed(error);
      return null;
    } finally {
      this.changed();
    }
  }

  private failed(error: unknown): void {
    if (error instanceof Problem && (error.status === 401 || error.status === 403)) {
      const had = key.get() !== null;
      key.forget();
      this.closeAll();
      this.needKey = !had ? null : error.status === 401 ? 'The server does not accept this key.' : error.message;
    } else {
      this.wrong = sentence(error);
    }
    this.changed();
  }

  onChange(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  private changed(): void {
    this.timers.notify ??= window.setTimeout(() => {
      delete this.timers.notify;
      for (const listener of this.listeners) listener();
    }, 50);
  }
}
