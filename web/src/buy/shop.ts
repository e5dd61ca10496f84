// One event on sale: its plan, its seats, this buyer's basket.

import { Problem } from '../shared/http';
import { Api, type EventSettings, type Office } from '../office/api';
import { Feed } from '../office/feed';
import { hall, type Hall } from '../office/hall';
import { place, type Shown } from '../office/labels';
import { Basket } from './basket';
import { isOurs, mint, needTicket, ticketOf } from './ticket';

export class Shop {
  hall: Hall | null = null;
  settings: EventSettings | null = null;
  areas: { id: string; name: string; capacity: number; price: number }[] = [];
  /** Why nothing can be shown. */
  failed: string | null = null;
  /** What the buyer picked and has not asked for yet; `leaving` is what is to be given back. */
  readonly picked = new Set<string>();
  readonly leaving = new Set<string>();
  readonly places = new Map<string, number>();
  /** Seats that were picked and went to somebody else. */
  gone: string | null = null;

  readonly api: Api;
  readonly feed: Feed;
  readonly basket: Basket;
  private readonly listeners = new Set<() => void>();
  private timer: number | undefined;

  constructor(
    readonly office: Office,
    readonly event: string,
    /** The buyer comes back from a payment page. */
    private readonly back = false,
  ) {
    this.api = new Api(() => ticketOf(event));
    this.basket = new Basket(this.api, event, () => this.changed(), () => this.renewTicket());
    this.feed = new Feed(this.api, event, false, {
      changed: () => this.changed(),
      news: () => this.lose(),
      refused: (problem) => void this.refused(problem),
      opened: () => this.basket.reopened(),
    });
  }

  async start(): Promise<void> {
    try {
      await needTicket(this.event);
      await this.read().catch(async (error) => {
        // A ticket that was kept may be over.
        if (!(error instanceof Problem && error.status === 401 && (await this.renewTicket()))) throw error;
        await this.read();
      });
      this.failed = null;
      this.feed.start();
      await this.basket.start(this.back);
    } catch (error) {
      this.failed = this.explain(error);
      if (!(error instanceof Problem) || error.status >= 500) window.setTimeout(() => void this.start(), 3000);
    }
    this.changed();
  }

  private async read(): Promise<void> {
    const [plan, settings] = await Promise.all([this.api.plan(this.event), this.api.event(this.event)]);
    this.hall = hall(plan);
    this.areas = (plan.areas ?? []).map((area) => ({ ...area, name: area.name ?? area.id }));
    this.settings = { ...settings, currency: settings.currency ?? plan.currency, name: settings.name ?? plan.name };
  }

  private explain(error: unknown): string {
    if (error instanceof Problem && (error.status === 401 || error.status === 403)) {
      return 'Your ticket to this sale is not valid, or not any more. Please come in again through the shop that sent you here.';
    }
    if (error instanceof Problem) return error.message;
    return 'The box office does not answer. Trying again.';
  }

  private async renewTicket(): Promise<boolean> {
    if (!isOurs(this.event)) return false;
    return mint(this.event).then(
      () => true,
      () => false,
    );
  }

  private async refused(problem: Problem): Promise<void> {
    if (problem.status === 401 && (await this.renewTicket())) this.feed.start();
    else this.failed = this.explain(problem);
    this.changed();
  }

  get currency(): string {
    return this.settings?.currency ?? '';
  }

  get most(): number {
    return this.settings?.per_buyer ?? 10;
  }

  get selling(): boolean {
    return this.settings !== null && this.settings.on_sale !== false && !this.settings.frozen;
  }

  shown(id: string): Shown {
    const mine = this.basket.held?.seats.includes(id) ?? false;
    if (mine) return this.leaving.has(id) ? 'leaving' : 'mine';
    return this.picked.has(id) ? 'picked' : this.feed.seats.state(id);
  }

  // --- picking

  pick(id: string): void {
    const shown = this.shown(id);
    if (this.basket.held?.state === 'paying' || this.basket.busy !== null) return;
    this.gone = null;
    if (shown === 'mine') this.leaving.add(id);
    else if (shown === 'leaving') this.leaving.delete(id);
    else if (shown === 'picked') this.picked.delete(id);
    else if (shown === 'free') this.picked.add(id);
    this.changed();
  }

  setPlaces(area: string, qty: number): void {
    if (qty > 0) this.places.set(area, qty);
    else this.places.delete(area);
    this.changed();
  }

  clear(): void {
    this.picked.clear();
    this.leaving.clear();
    this.places.clear();
    this.gone = null;
    this.changed();
  }

  get cost(): number {
    let sum = 0;
    for (const id of this.picked) sum += this.hall?.seats.get(id)?.price ?? 0;
    for (const [id, qty] of this.places) sum += qty * (this.areas.find((area) => area.id === id)?.price ?? 0);
    return sum;
  }

  /** Asks for what is picked: a new hold, or a change of the one there is. */
  async take(): Promise<void> {
    const { held } = this.basket;
    const seats = [...this.picked];
    const areas = [...this.places].map(([id, qty]) => ({ id, qty }));
    const leaving = [...this.leaving];
    const all = held !== null && seats.length === 0 && held.areas.length === 0 && leaving.length === held.seats.length;
    const wish = { ...(seats.length > 0 && { seats }), ...(areas.length > 0 && { areas }) };
    const done = held === null ? this.basket.hold(wish) : all ? this.basket.release() : this.basket.change(seats, leaving, areas);
    if (await done) this.clear();
    else if (this.basket.refusal !== null) {
      // Whoever was refused looks at something old.
      void this.feed.whole();
      this.unpick(this.basket.refusal.conflicts.map(({ seat }) => seat ?? ''));
    }
  }

  private unpick(ids: string[]): void {
    for (const id of ids) this.picked.delete(id);
    this.changed();
  }

  /** A seat that was picked and is somebody else's now is not picked any more, and is named. */
  private lose(): void {
    if (this.basket.busy !== null) return;
    const lost = [...this.picked].filter((id) => this.feed.seats.state(id) !== 'free' && !this.basket.held?.seats.includes(id));
    if (lost.length === 0) return;
    for (const id of lost) this.picked.delete(id);
    const names = lost.map((id) => this.hall?.seats.get(id)).filter((seat) => seat !== undefined);
    this.gone = `${names.map(place).join('; ')}: just taken by somebody else.`;
  }

  // --- telling

  onChange(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** Views are told at most twenty times a second. */
  private changed(): void {
    this.timer ??= window.setTimeout(() => {
      this.timer = undefined;
      for (const listener of this.listeners) listener();
    }, 50);
  }
}
