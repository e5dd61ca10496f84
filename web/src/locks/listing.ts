// A part of the server's list, from its beginning, kept in the order of names.
//
// Laws: what the server lists replaces what is here (`splice`), except rows that an event touched after the
// question was asked: the answer may be older than the event. Events are believed at once (`granted`, `ended`)
// and are only a preview: they carry no remaining time, and the next listing has the last word.

import type { Holder, Page, Resource } from './api';
import { compareNames } from './order';

export interface LeaseEvent {
  kind: 'granted' | 'relabelled' | 'released' | 'lapsed' | 'revoked';
  token: string | null;
  resources: string[];
  holder: string;
}

/** Far more than anybody scrolls through; the search narrows it down. */
export const mostRows = 100_000;

/** More than this while one answer is on its way is a flood; the next look sets right what it drops. */
const mostBeyond = 2000;

/** Two answers put the same end a little apart. Below this the countdown keeps its pace instead of jumping. */
const jitter = 400;

export class Listing {
  rows: Resource[] = [];
  /** There is nothing on the server after the last row. */
  complete = false;
  /** At least one answer has come. */
  begun = false;
  private readonly byName = new Map<string, Resource>();
  /** Rows changed by events, with the count of events at that moment. */
  private touched = new Map<string, number>();
  private events = 0;
  /** Events beyond the loaded part since the last question: its answer may reach there, and be older than they. */
  private beyond: { event: LeaseEvent; count: number; at: number }[] = [];

  constructor(readonly prefix: string) {}

  get(name: string): Resource | undefined {
    return this.byName.get(name);
  }

  /** The place of a name, or where it would be. */
  place(name: string): number {
    let low = 0;
    let high = this.rows.length;
    while (low < high) {
      const middle = (low + high) >>> 1;
      const row = this.rows[middle];
      if (row !== undefined && compareNames(row.name, name) < 0) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** To be read before a question is asked, and given to `splice` with its answer. */
  mark(): number {
    return this.events;
  }

  /**
   * Takes an answer: all names after `after`, up to its last one or, if there are no more, to the end.
   * Says whether it was overtaken by events, so that another look is due.
   */
  splice(after: string | null, page: Page, mark: number): boolean {
    const from = after === null ? 0 : this.upper(after);
    const last = page.resources.at(-1);
    const to = page.more && last !== undefined ? this.upper(last.name) : this.rows.length;
    const reachesEnd = to === this.rows.length;
    const old = this.rows.slice(from, to);
    const fresh = page.resources.filter((row) => !this.isNewer(row.name, mark));
    const kept = old.filter((row) => this.isNewer(row.name, mark));
    for (const row of fresh) this.settle(row);
    for (const row of old) this.byName.delete(row.name);
    const rows = [...fresh, ...kept];
    if (kept.length > 0) rows.sort((a, b) => compareNames(a.name, b.name));
    for (const row of rows) this.byName.set(row.name, row);
    if (from === 0 && to === this.rows.length) this.rows = rows;
    else this.rows = [...this.rows.slice(0, from), ...rows, ...this.rows.slice(to)];
    this.begun = true;
    if (!page.more) this.complete = true;
    else if (reachesEnd) this.complete = false;
    return this.replay(mark) || kept.length > 0;
  }

  private replay(mark: number): boolean {
    const missed = this.beyond.filter(({ count }) => count > mark);
    this.beyond = [];
    let changed = false;
    for (const { event, at } of missed) changed = this.apply(event, at) || changed;
    return changed;
  }

  /** No question is open: what was touched need not be remembered. */
  rest(): void {
    this.touched.clear();
    this.beyond = [];
  }

  /** Is this name in the part that is loaded? */
  covers(name: string): boolean {
    if (!this.begun || !name.startsWith(this.prefix)) return false;
    const last = this.rows.at(-1);
    return this.complete || (last !== undefined && compareNames(name, last.name) <= 0);
  }

  /** Says whether anything here changed. */
  apply(event: LeaseEvent, at: number): boolean {
    let changed = false;
    this.events += 1;
    for (const name of event.resources) {
      if (!this.covers(name)) {
        if (name.startsWith(this.prefix)) this.keep({ ...event, resources: [name] }, at);
        continue;
      }
      this.touched.set(name, this.events);
      changed = true;
      if (event.kind === 'granted') this.granted(name, event, at);
      else if (event.kind === 'relabelled') this.relabelled(name, event);
      else this.ended(name, event);
    }
    return changed;
  }

  private keep(event: LeaseEvent, at: number): void {
    if (this.beyond.length >= mostBeyond) this.beyond.shift();
    this.beyond.push({ event, count: this.events, at });
  }

  private granted(name: string, event: LeaseEvent, at: number): void {
    const holder: Holder = { holder: event.holder, token: event.token, since: at, ends: null };
    const row = this.byName.get(name);
    if (row === undefined) {
      this.insert({ name, mode: null, used: null, capacity: null, holders: [holder], holdersTotal: 1, waiters: [], queueLen: 0 });
    } else if (!row.holders.some((held) => same(held, event))) {
      const place = row.waiters.findIndex((waiter) => waiter.holder === event.holder);
      const waiters = place < 0 ? row.waiters : row.waiters.toSpliced(place, 1);
      const queueLen = place < 0 ? row.queueLen : Math.max(0, row.queueLen - 1);
      const holdersTotal = row.holdersTotal + 1;
      this.replace({ ...row, holders: [...row.holders, holder], holdersTotal, waiters, queueLen });
    }
  }

  /** Without a token nobody can say which of several it is: the next listing does. */
  private relabelled(name: string, event: LeaseEvent): void {
    const row = this.byName.get(name);
    if (row === undefined || event.token === null) return;
    const holders = row.holders.map((held) => (held.token === event.token ? { ...held, holder: event.holder } : held));
    this.replace({ ...row, holders });
  }

  private ended(name: string, event: LeaseEvent): void {
    const row = this.byName.get(name);
    if (row === undefined) return;
    const holders = row.holders.filter((held) => !same(held, event));
    // Also one of those who are not shown: of a crowd the server lists the first only.
    const holdersTotal = Math.max(holders.length, row.holdersTotal - 1);
    if (holdersTotal === 0 && row.queueLen === 0) this.remove(name);
    else this.replace({ ...row, holders, holdersTotal });
  }

  /** Keeps the pace of a countdown that only differs by the time an answer took. */
  private settle(row: Resource): void {
    const old = this.byName.get(row.name);
    if (old === undefined) return;
    for (const held of row.holders) {
      const before = old.holders.find((one) => one.token === held.token && one.holder === held.holder);
      if (before === undefined) continue;
      if (Math.abs(before.since - held.since) < jitter) held.since = before.since;
      if (before.ends === null || held.ends === null) continue;
      if (Math.abs(before.ends - held.ends) < jitter) held.ends = before.ends;
    }
  }

  private isNewer(name: string, mark: number): boolean {
    return (this.touched.get(name) ?? -1) > mark;
  }

  private upper(name: string): number {
    const place = this.place(name);
    return this.rows[place]?.name === name ? place + 1 : place;
  }

  private insert(row: Resource): void {
    this.rows.splice(this.place(row.name), 0, row);
    this.byName.set(row.name, row);
    if (this.rows.length <= mostRows) return;
    // What is dropped from the end is loaded again by whoever scrolls there.
    const dropped = this.rows.pop();
    if (dropped !== undefined) this.byName.delete(dropped.name);
    this.complete = false;
  }

  private replace(row: Resource): void {
    // In place: rows are found by name, and a copy of 100,000 for each event would cost a frame.
    this.rows[this.place(row.name)] = row;
    this.byName.set(row.name, row);
  }

  private remove(name: string): void {
    this.rows.splice(this.place(name), 1);
    this.byName.delete(name);
  }
}

function same(held: Holder, event: LeaseEvent): boolean {
  return event.token === null ? held.holder === event.holder : held.token === event.token;
}

/** Does a row contain the text, in its name, a holder, a waiter, or as its token? */
export function contains(row: Resource, lower: string): boolean {
  return (
    row.name.toLowerCase().includes(lower) ||
    row.holders.some((held) => held.token === lower || held.holder.toLowerCase().includes(lower)) ||
    row.waiters.some((waiter) => waiter.holder.toLowerCase().includes(lower))
  );
}
