// The buyer's hold: what this page knows of it, and everything that can be done with it.
//
// Laws: the server decides; the countdown only shows. A call is written down with its key before it is sent and is
// told again with that key until there is an answer, also after a reload. No answer is never taken for a no.
// Time left is counted from the moment a question was asked: the page never shows time that is not there.

import { now } from '../shared/clock';
import { Problem, sentence } from '../shared/http';
import { freshId, holdPath, holdsPath, idOf, type Alternative, type Api, type Conflict, type Hold, type Money, type MoneyState, type Order } from '../office/api';
import { Calls } from './calls';
import type { Held, Refusal, Wish } from './held';
import { returnUrl } from './ticket';
import { Vault, type Bought, type Kept, type Kind, type Pending } from './vault';

const calm = 20_000;
const eager = 1500;

export class Basket {
  held: Held | null = null;
  order: Bought | null;
  refusal: Refusal | null = null;
  /** The last thing that happened, for everybody to read and hear. */
  note = '';
  /** A failure, in the server's words. */
  wrong: string | null = null;
  /** A call without an answer: what became of it is not known. */
  unknown: Pending | null = null;
  busy: Kind | null = null;
  /** The first look at what this browser remembers is done. */
  ready = false;

  private readonly vault: Vault;
  private readonly calls: Calls;
  private timer: number | undefined;
  private asked = 0;
  private lateTimer: number | undefined;
  /** The buyer comes back from a payment page, and was not told yet that the payment is asked after. */
  private back = false;
  /** Money that came too late, too little or twice, by the hold it came for. */
  private came = new Map<string, Money[]>();

  constructor(
    private readonly api: Api,
    private readonly event: string,
    private readonly changed: () => void,
    /** The ticket was refused: get another one, or say that there is none. */
    private readonly renewTicket: () => Promise<boolean>,
  ) {
    this.vault = new Vault(event);
    this.calls = new Calls(api);
    this.order = this.vault.order;
    this.vault.onOther(() => {
      this.order = this.vault.order;
      void this.refresh();
      void this.followLate();
    });
    document.addEventListener('visibilitychange', () => !document.hidden && void this.refresh());
    // Back brings a page out of the cache as it was: its clock stood still meanwhile.
    window.addEventListener('pageshow', (event) => event.persisted && void this.refresh());
  }

  async start(back = false): Promise<void> {
    this.back = back;
    const pending = this.vault.pending;
    if (pending !== null) await this.attempt(pending);
    await this.refresh();
    void this.followLate();
    this.ready = true;
    this.changed();
  }

  /** Money that came too late, too little or twice, and what became of it. */
  get money(): Money[] {
    return [...this.came.values()].flat();
  }

  // --- what can be done

  hold(wish: Wish): Promise<boolean> {
    return this.act('hold', holdsPath(this.event), wish);
  }

  change(add: string[], remove: string[], areas: { id: string; qty: number }[] = []): Promise<boolean> {
    return this.act('change', this.path('seats'), { add, remove, ...(areas.length > 0 && { add_areas: areas }) });
  }

  /** Takes what is offered for money that came too late. */
  accept(): Promise<boolean> {
    return this.act('confirm', this.path('confirm'), { payment_ref: this.held?.paymentRef ?? this.vault.hold?.payment_ref });
  }

  renew(): Promise<boolean> {
    return this.act('renew', this.path('renew'), {});
  }

  release(): Promise<boolean> {
    return this.act('release', this.path('release'), {});
  }

  /** The server names the payment: the answer has its reference and, where the provider has one, its page. */
  pay(): Promise<boolean> {
    return this.act('pay', this.path('pay'), { return_url: returnUrl(this.event) });
  }

  /** Gives the payment up. The server asks the provider first: money that was quicker is the sale. */
  cancelPayment(): Promise<boolean> {
    return this.act('cancel', this.path('pay/cancel'), {});
  }

  /** The test provider of a demo server: decides, and calls the server back as a real one would. */
  demoPay(outcome: string): Promise<boolean> {
    return this.act('demo', '/v1/demo/pay', { hold_id: this.held?.hold_id, payment_ref: this.held?.paymentRef, outcome });
  }

  tryAgain(): void {
    if (this.unknown !== null) void this.attempt(this.unknown).then(() => this.refresh());
  }

  /** The line is back: what has no answer is asked again. */
  reopened(): void {
    if (this.unknown !== null) this.tryAgain();
    else void this.refresh();
  }

  dismiss(): void {
    this.refusal = null;
    this.wrong = null;
    this.changed();
  }

  forgetOrder(): void {
    this.order = null;
    this.vault.order = null;
    this.vault.tell();
    this.changed();
  }

  // --- one call

  private path(action: string): string {
    return holdPath(this.vault.hold?.hold_id ?? '', action);
  }

  private async act(kind: Kind, path: string, body: unknown): Promise<boolean> {
    if (this.busy !== null) return false;
    // Another tab may have made a hold meanwhile: there is one.
    if (kind === 'hold' && this.vault.hold !== null) {
      await this.refresh();
      if (this.held !== null) return false;
    }
    this.refusal = null;
    this.wrong = null;
    this.note = '';
    const pending = { kind, path, body, idem: freshId() };
    this.vault.pending = pending;
    return this.attempt(pending);
  }

  private async attempt(pending: Pending): Promise<boolean> {
    if (this.busy !== null) return false;
    this.busy = pending.kind;
    this.unknown = null;
    this.changed();
    const { said, asked, problem } = await this.calls.insist(pending, this.proof(), this.renewTicket);
    if (problem === null) this.answered(pending, said, asked);
    else if (problem === 'unknown') this.unknown = pending;
    else this.refused(pending, problem);
    if (problem !== 'unknown') this.vault.pending = null;
    this.busy = null;
    this.changed();
    this.vault.tell();
    return problem === null;
  }

  /** What opens the hold. */
  private proof(): Record<string, string> {
    const kept = this.vault.hold;
    return kept === null ? {} : { 'Leasehold-Hold-Key': kept.hold_key };
  }


  private answered({ kind }: Pending, said: unknown, asked: number): void {
    const hold = (said ?? {}) as Hold;
    if (kind === 'hold') {
      this.vault.hold = { hold_id: hold.hold_id, hold_key: hold.hold_key ?? '' };
      this.vault.order = null;
      this.order = null;
      const late = this.vault.late?.hold_id;
      this.came = new Map([...this.came].filter(([hold]) => hold === late));
    }
    if (kind === 'release') this.ended(this.held?.paid ? 'The seats are given back. Your money goes back to you.' : 'Your seats are given back.');
    else if (kind === 'confirm') this.sold(said as Order);
    else if (kind === 'cancel') this.cancelled(hold, asked);
    else {
      const state = hold.state ?? (kind === 'pay' ? 'paying' : (this.held?.state ?? 'active'));
      if (hold.remaining_ms !== undefined) this.take({ ...hold, state }, asked);
      this.note = notes[kind] ?? '';
      void this.refresh();
    }
  }

  /** The payment is given up. The seats are the buyer's again for what is left of their time. */
  private cancelled(hold: Hold, asked: number): void {
    const kept = this.vault.hold;
    const ref = hold.payment?.payment_ref ?? this.held?.paymentRef ?? null;
    if (kept !== null && ref !== null) this.vault.hold = { ...kept, cancelled: ref };
    this.settle(hold, asked);
    if (this.held !== null) this.note = `${givenUp} Your seats are still held for you.`;
    void this.refresh();
  }

  private refused({ kind }: Pending, problem: Problem): void {
    const conflicts = problem.body['conflicts'] as Conflict[] | undefined;
    if (problem.status === 409 && conflicts !== undefined) {
      const alternative = (problem.body['alternative'] as Alternative | null | undefined) ?? null;
      this.refusal = { conflicts, alternative, kept: this.held !== null };
    } else if (problem.status === 410 && (kind === 'cancel' || problem.code === 'sold')) {
      // It was sold, or ran out, meanwhile: the refresh says which, and what became of the money.
      this.note = '';
    } else if ((problem.status === 410 || problem.status === 404) && kind !== 'hold' && kind !== 'demo') {
      this.ended(`Your hold has ended: ${problem.message}`);
    } else {
      this.wrong = problem.message;
    }
    if (kind !== 'hold') void this.refresh();
  }

  // --- what the server says of the hold

  /** Asks how the hold stands. Anything that is not an answer changes nothing. */
  async refresh(): Promise<void> {
    window.clearTimeout(this.timer);
    const kept = this.vault.hold;
    if (kept === null) {
      if (this.held !== null) {
        this.held = null;
        this.changed();
      }
      return;
    }
    const turn = ++this.asked;
    const asked = now();
    try {
      const said = (await this.api.get(holdPath(kept.hold_id), this.proof())) as Hold;
      if (turn === this.asked && this.vault.hold?.hold_id === kept.hold_id) this.settle(said, asked);
    } catch (error) {
      if (turn !== this.asked) return;
      if (error instanceof Problem && (error.status === 404 || error.status === 410)) this.ended('Your hold has ended. The seats are free again.');
      else if (error instanceof Problem && error.status === 401 && (await this.renewTicket())) return this.refresh();
      else if (error instanceof Problem && error.status < 500) this.wrong = sentence(error);
    }
    this.changed();
    this.lookLater();
  }

  private lookLater(): void {
    window.clearTimeout(this.timer);
    if (this.vault.hold === null) return;
    const left = this.held === null ? eager : Math.max(eager / 3, this.held.ends - now() + 200);
    const pause = Math.min(left, this.held?.state === 'paying' ? eager : calm);
    this.timer = window.setTimeout(() => void this.refresh(), pause);
  }

  private settle(said: Hold, asked: number): void {
    const before = this.held?.state;
    this.came.set(said.hold_id, said.money ?? []);
    if (said.state === 'sold') {
      this.sold({ order_id: said.order_id ?? '', seats: said.seats ?? [], areas: said.areas ?? [], total: said.total ?? 0 });
    } else if (said.state === 'released') this.ended('Your seats are given back.');
    else if (said.state === 'lapsed') this.lapsed(said);
    else {
      this.take(said, asked);
      if (this.back && said.state === 'paying') this.note = 'You are back from the payment page. We are asking what became of your payment.';
      this.back = false;
      if (before === 'paying' && said.state === 'active') {
        this.note = `${this.whyUnpaid(said)} Your seats are still held for you.`;
      }
    }
  }

  private whyUnpaid(said: Hold): string {
    const paid = said.payment?.payment_ref;
    const unfit = said.money?.find(({ payment_ref }) => payment_ref === paid);
    if (unfit !== undefined) return `What came did not fit what the seats cost. ${untaken(unfit.state) ? noMoney : 'It goes back to you.'}`;
    return this.vault.hold?.cancelled === paid ? givenUp : 'The payment was declined or cancelled.';
  }

  private take(said: Hold, asked: number): void {
    const old = this.held;
    this.held = {
      hold_id: said.hold_id ?? old?.hold_id ?? '',
      state: said.state ?? 'active',
      seats: said.seats?.map(idOf) ?? old?.seats ?? [],
      areas: said.areas ?? old?.areas ?? [],
      total: said.total ?? old?.total ?? 0,
      ends: asked + (said.remaining_ms ?? 0),
      renewableUntil: said.renewable_ms === undefined ? (old?.renewableUntil ?? 0) : asked + said.renewable_ms,
      paymentRef: said.payment?.payment_ref ?? this.vault.hold?.payment_ref ?? null,
      payUrl: said.pay_url ?? null,
      paid: this.vault.hold?.paid ?? false,
    };
    this.lookLater();
  }

  private sold(order: Order): void {
    const seats = order.seats.length > 0 ? order.seats.map(idOf) : (this.held?.seats ?? []);
    const areas = order.areas ?? this.held?.areas ?? [];
    this.order = { order_id: order.order_id || null, seats, areas, total: order.total };
    this.vault.order = this.order;
    this.vault.hold = null;
    this.held = null;
    this.note = 'Your seats are bought.';
  }

  // --- money that comes too late

  private lapsed(said: Hold): void {
    const kept = this.vault.hold;
    const paid = said.payment?.payment_ref;
    if (kept === null || paid === undefined || paid === kept.cancelled) {
      this.ended(`${paid === undefined ? '' : `${givenUp} `}Your time is over. The seats are free again.`);
      return;
    }
    this.vault.late = { ...kept, payment_ref: paid };
    this.ended('The time to pay is over. If your money still comes, this page says what becomes of it.');
    void this.followLate();
  }

  /** Looks what became of the money, until it is decided. */
  private async followLate(): Promise<void> {
    window.clearTimeout(this.lateTimer);
    const late = this.vault.late;
    if (late === null) return;
    const asked = now();
    const said = (await this.api.get(holdPath(late.hold_id), { 'Leasehold-Hold-Key': late.hold_key }).catch(() => null)) as Hold | null;
    if (this.vault.late?.hold_id !== late.hold_id) return;
    if (said === null || !this.resolved(late, said, asked)) this.lateTimer = window.setTimeout(() => void this.followLate(), eager);
    this.changed();
  }

  private resolved(late: Kept, said: Hold, asked: number): boolean {
    const found = said.resolution;
    this.came.set(late.hold_id, said.money ?? []);
    if (said.state === 'sold' || found?.state === 'sold') {
      this.sold({ order_id: said.order_id ?? '', seats: said.seats ?? [], areas: said.areas ?? [], total: said.total ?? 0 });
      this.note = 'Your money came late, and the seats were still free: they are yours.';
    } else if (found?.state === 'offered' && found.offer !== undefined && this.vault.hold === null) {
      this.vault.hold = { ...late, hold_id: found.offer, paid: true };
      this.take({ hold_id: found.offer, state: 'active', seats: (found.seats ?? []).map((id) => ({ id, token: '' })), remaining_ms: 0 }, asked);
      this.note = 'Your money came too late for your seats. These are as good, and held for you.';
      void this.refresh();
    } else if (found?.state === 'refund_due' || found?.state === 'refunded') {
      const tooLate = found.steps?.[0]?.state === 'received';
      this.note = `${tooLate ? 'Your money came too late and the seats are gone.' : 'Your money did not fit what the seats cost.'} It goes back to you.`;
    } else if (found !== undefined && found !== null && untaken(found.state)) {
      this.note = `Your payment did not buy your seats. ${noMoney}`;
    } else if (found?.state === 'stuck' || found?.state === 'closed') {
      this.note = 'Something is not right with your payment. Our staff sees to it: please ask at the box office.';
    } else {
      return false;
    }
    this.vault.late = null;
    return true;
  }

  private ended(note: string): void {
    this.vault.hold = null;
    this.held = null;
    this.note = note;
  }
}

/** Authorised and never captured: the money is the buyer's, and was so all the time. */
const untaken = (state: MoneyState): boolean => state === 'cancel_due' || state === 'cancelled';
const noMoney = 'The payment is cancelled: no money was taken.';
const givenUp = 'The payment is cancelled.';

const notes: Partial<Record<Kind, string>> = {
  hold: 'The seats are held for you.',
  change: 'Your seats are changed.',
  renew: 'Your hold is renewed.',
  pay: 'Your seats are safe while you pay.',
  demo: 'The test provider has the payment.',
};
