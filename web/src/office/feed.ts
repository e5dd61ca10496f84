// Keeps the seats of one event in step with the server: the whole first, then the news that follow it.

import { now } from '../shared/clock';
import type { Message } from '../shared/cutter';
import { Problem } from '../shared/http';
import { Stream } from '../shared/sse';
import { streamOf, type Api, type SeatsEvent } from './api';
import { Seats } from './seats';

export type Link = 'connecting' | 'live' | 'reconnecting' | 'refused';

export interface Heard {
  changed(): void;
  /** Seats that changed by news, as opposed to the whole being read. */
  news?(event: SeatsEvent, seats: string[]): void;
  refused(problem: Problem): void;
  /** The line is up (again). */
  opened?(): void;
}

const firstPause = 500;
const longestPause = 8000;

export class Feed {
  readonly seats = new Seats();
  link: Link = 'connecting';
  heardAt = now();
  private readonly stream: Stream;
  private asking = false;
  private again = false;
  private anyway = false;
  private pause = firstPause;
  private timer: number | undefined;
  private stopped = false;

  constructor(
    private readonly api: Api,
    private readonly event: string,
    private readonly detail: boolean,
    private readonly listener: Heard,
  ) {
    this.stream = new Stream(streamOf(event), api.secret, {
      opened: () => this.opened(),
      heard: () => (this.heardAt = now()),
      messages: (batch) => batch.forEach((message) => this.message(message)),
      lost: () => this.lost(),
      refused: (problem) => this.refused(problem),
    });
  }

  start(): void {
    this.stopped = false;
    void this.whole();
  }

  stop(): void {
    this.stopped = true;
    window.clearTimeout(this.timer);
    this.stream.stop();
  }

  /** Reads all of it again, now or as soon as the question that is open is answered. */
  async whole(): Promise<void> {
    if (this.asking) this.again = true;
    if (this.asking || this.stopped) return;
    this.asking = true;
    this.again = false;
    try {
      const all = await this.api.availability(this.event, this.detail);
      const fresh = !this.seats.begun;
      if (!this.seats.take(all, this.anyway)) this.again = true;
      this.anyway = false;
      this.pause = firstPause;
      if (fresh && !this.stopped) this.stream.start(String(all.seq));
    } catch (error) {
      if (error instanceof Problem && (error.status === 401 || error.status === 403)) this.refused(error);
      else this.later();
    } finally {
      this.asking = false;
      this.listener.changed();
      if (this.again) void this.whole();
    }
  }

  private afresh(): void {
    this.anyway = true;
    void this.whole();
  }

  private later(): void {
    if (!this.seats.begun) this.lost();
    window.clearTimeout(this.timer);
    this.timer = window.setTimeout(() => void this.whole(), this.pause);
    this.pause = Math.min(this.pause * 2, longestPause);
  }

  private opened(): void {
    const back = this.link === 'reconnecting';
    this.link = 'live';
    this.heardAt = now();
    // The server may have been put back to an older state while it was away: the whole has the last word.
    if (back) this.afresh();
    this.listener.opened?.();
    this.listener.changed();
  }

  private lost(): void {
    this.link = this.link === 'connecting' ? 'connecting' : 'reconnecting';
    this.listener.changed();
  }

  private refused(problem: Problem): void {
    this.stop();
    this.link = 'refused';
    this.listener.refused(problem);
    this.listener.changed();
  }

  private message({ event, data }: Message): void {
    // The server says why it hangs up. The next attempt tells whether it is for good.
    if (event === 'end') return;
    const said = event === 'reset' ? null : parsed(data);
    const changed = said === null ? null : this.seats.hear(said);
    if (said === null) this.afresh();
    else if (changed === null) void this.whole();
    else this.listener.news?.(said, changed);
    this.listener.changed();
  }
}

function parsed(data: string): SeatsEvent | null {
  try {
    const said = JSON.parse(data) as SeatsEvent;
    const seq = Number(said.seq);
    return Number.isFinite(seq) ? { ...said, seq } : null;
  } catch {
    return null;
  }
}
