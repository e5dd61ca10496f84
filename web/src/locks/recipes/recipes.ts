// Keeps elections, schedules and queues in step with the server.
//
// The board that is shown is asked for again every five seconds, and elections also when an event of the stream is
// about one. The others are asked for now and then: a tab comes when the server has something for it. Nothing is asked
// for while nobody looks at the page.
//
// A board is absent where the server does not know the route (404, an older server) or has no store (503). What was
// shown once stays in sight when a question fails, as old, with the server's sentence.

import * as api from './api';
import { kinds, type Kind } from '../address';
import { now } from '../../shared/clock';
import { Problem, sentence } from '../../shared/http';
import type { Live } from '../live';

/** While it is shown; and while it is not. */
const shownPause = 5000;
const hiddenPause = 30_000;
const deadShown = 100;
const runsShown = 50;

export interface Board<T> {
  /** null: no answer yet. */
  rows: T[] | null;
  /** Whether the server has it; null: not known. */
  there: boolean | null;
  /** Why the last question failed, in the server's sentence. */
  error: string | null;
}

interface Boards {
  elections: Board<api.Election>;
  schedules: Board<api.Schedule>;
  queues: Board<api.Queue>;
}

/** The runs of one schedule, or the dead letters of one queue. */
export interface Pane<T> {
  name: string;
  rows: T[] | null;
  error: string | null;
}

const fresh = <T>(): Board<T> => ({ rows: null, there: null, error: null });

export class Recipes {
  boards: Boards = { elections: fresh(), schedules: fresh(), queues: fresh() };
  runs: Pane<api.RunWithTail> | null = null;
  dead: Pane<api.DeadLetter> | null = null;
  /** What the last action did. */
  note: string | null = null;

  private shown: Kind | null = null;
  private era = -1;
  private link: Live['link'] = 'connecting';
  private timers: Partial<Record<Kind, { timer: number; at: number }>> = {};
  /** Answers come in any order; one that is older than what is shown is dropped. */
  private asked: Partial<Record<Kind | 'pane', number>> = {};
  private readonly listeners = new Set<() => void>();

  constructor(private readonly live: Live) {}

  start(): void {
    this.live.onChange(() => this.follow());
    this.live.onElection = () => {
      if (this.shown === 'elections') this.later('elections', 200);
    };
    document.addEventListener('visibilitychange', () => {
      if (!document.hidden && this.link === 'live') this.askAll();
    });
  }

  onChange(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** What is shown may no longer be true. */
  old(kind: Kind): boolean {
    return this.live.stale || this.boards[kind].error !== null;
  }

  show(kind: Kind | null): void {
    if (this.shown === kind) return;
    this.shown = kind;
    this.close();
    if (kind !== null && this.link === 'live') this.later(kind, 0);
  }

  /** The runs of a schedule, the dead letters of a queue. */
  open(kind: Kind, name: string): void {
    this.note = null;
    if (kind === 'schedules') this.runs = { name, rows: null, error: null };
    else if (kind === 'queues') this.dead = { name, rows: null, error: null };
    void this.refreshPane();
    this.changed();
  }

  close(): void {
    this.runs = null;
    this.dead = null;
    this.note = null;
    this.changed();
  }

  async settle(queue: string, how: 'retry' | 'drop', jobs: string[]): Promise<number> {
    const done = await api.settle(queue, how, jobs);
    this.later('queues', 0);
    return done;
  }

  async pause(queue: string, paused: boolean): Promise<void> {
    await api.pause(queue, paused);
    this.later('queues', 0);
  }

  say(note: string): void {
    this.note = note;
    this.changed();
  }

  // --- asking

  /** The connection and the key are `Live`'s. Another key may see other things: what the last one saw goes. */
  private follow(): void {
    const { era, link } = this.live;
    if (era !== this.era) {
      this.boards = { elections: fresh(), schedules: fresh(), queues: fresh() };
      this.runs &&= { ...this.runs, rows: null, error: null };
      this.dead &&= { ...this.dead, rows: null, error: null };
    }
    const back = link === 'live' && (this.link !== 'live' || era !== this.era);
    this.era = era;
    this.link = link;
    if (back) this.askAll();
  }

  private askAll(): void {
    for (const kind of kinds) this.later(kind, 0);
  }

  /** One timer for each board: the sooner wish wins, so that a flood of events puts nothing off. */
  private later(kind: Kind, ms: number): void {
    const at = now() + ms;
    const set = this.timers[kind];
    if (set !== undefined && set.at <= at) return;
    window.clearTimeout(set?.timer);
    const timer = window.setTimeout(() => {
      delete this.timers[kind];
      void this.refresh(kind);
    }, ms);
    this.timers[kind] = { timer, at };
  }

  private async refresh(kind: Kind): Promise<void> {
    if (document.hidden || this.link !== 'live') return;
    const began = now();
    // Both at once, so that a count and what it counts are of the same moment.
    await Promise.all([this.refreshBoard(kind), kind === this.shown ? this.refreshPane() : null]);
    // A server that needs long is asked less often.
    const pause = Math.max(kind === this.shown ? shownPause : hiddenPause, (now() - began) * 10);
    this.later(kind, pause);
  }

  private async refreshBoard(kind: Kind): Promise<void> {
    const { era } = this.live;
    const turn = (this.asked[kind] = (this.asked[kind] ?? 0) + 1);
    let update: Partial<Board<never>>;
    try {
      update = { rows: (await api[kind]()) as never[], there: true, error: null };
    } catch (error) {
      if (era === this.live.era) this.live.refusedKey(error);
      update = failed(error, this.boards[kind].rows !== null);
    }
    if (era !== this.live.era || turn !== this.asked[kind]) return;
    Object.assign(this.boards[kind], update);
    this.changed();
  }

  private async refreshPane(): Promise<void> {
    const pane = this.runs ?? this.dead;
    if (pane === null || document.hidden || this.link === 'key') return;
    const { era } = this.live;
    const turn = (this.asked.pane = (this.asked.pane ?? 0) + 1);
    let update: Partial<Pane<never>>;
    try {
      const rows = this.runs === null ? api.dead(pane.name, deadShown) : api.runs(pane.name, runsShown);
      update = { rows: (await rows) as never[], error: null };
    } catch (error) {
      if (era === this.live.era) this.live.refusedKey(error);
      update = { error: sentence(error) };
    }
    if (era !== this.live.era || turn !== this.asked.pane) return;
    if (this.runs?.name === pane.name) this.runs = { ...this.runs, ...update };
    if (this.dead?.name === pane.name) this.dead = { ...this.dead, ...update };
    this.changed();
  }

  private changed(): void {
    for (const listener of this.listeners) listener();
  }
}

/** What a failed question says of the board. */
function failed(error: unknown, known: boolean): Partial<Board<never>> {
  if (error instanceof Problem && error.status === 404) {
    return { rows: null, there: false, error: 'This server does not have it: it is older than this page.' };
  }
  if (error instanceof Problem && error.status === 503 && !known) return { there: false, error: error.message };
  // No answer says nothing of what the server has.
  return error instanceof Problem ? { there: true, error: error.message } : { error: sentence(error) };
}
