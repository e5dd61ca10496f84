// Server-sent events over fetch: EventSource cannot send an Authorization header.
//
// Laws: an event is handed on once, in order; a reconnect says which event was the last (Last-Event-ID); a
// silent line is a dead line (the server sends a comment every 15 s).

import { Cutter, type Message } from './cutter';
import { bearer, problem, type Problem } from './http';

export interface Listener {
  opened(): void;
  /** All messages that came at once, so that a flood can be taken as one. */
  messages(batch: Message[]): void;
  heard(): void;
  /** The line is down; the next attempt is in `ms`. */
  lost(ms: number): void;
  /** The server refuses; no further attempt is made. */
  refused(problem: Problem): void;
}

const silence = 40_000;
const firstPause = 500;
const longestPause = 10_000;

export class Stream {
  private abort: AbortController | null = null;
  private lastId: string | null = null;
  private pause = firstPause;
  private timer: number | undefined;
  private watchdog: number | undefined;
  private stopped = true;

  constructor(
    private readonly path: string,
    /** Asked at each attempt: a ticket may have been renewed. */
    private readonly secret: () => string | null,
    private readonly listener: Listener,
  ) {
    // A network that came back, or a lid that was opened: do not wait out the pause.
    window.addEventListener('online', () => this.hurry());
    document.addEventListener('visibilitychange', () => !document.hidden && this.hurry());
  }

  /** `from` is the last event that is known already. */
  start(from: string | null = null): void {
    this.stop();
    this.stopped = false;
    this.lastId = from;
    this.pause = firstPause;
    void this.connect();
  }

  stop(): void {
    this.stopped = true;
    window.clearTimeout(this.timer);
    window.clearTimeout(this.watchdog);
    this.timer = undefined;
    this.abort?.abort();
    this.abort = null;
  }

  /** The server is known to be there: do not wait out the pause. */
  hurry(): void {
    if (this.stopped || this.timer === undefined) return;
    window.clearTimeout(this.timer);
    this.pause = firstPause;
    void this.connect();
  }

  private async connect(): Promise<void> {
    this.timer = undefined;
    const abort = new AbortController();
    this.abort = abort;
    this.guard();
    try {
      await this.read(abort);
    } catch {
      // Whatever it was, the line is down: that is all there is to know here.
    }
    if (this.abort !== abort || this.stopped) return;
    window.clearTimeout(this.watchdog);
    const wait = this.pause * (0.75 + Math.random() / 2);
    this.pause = Math.min(this.pause * 2, longestPause);
    this.timer = window.setTimeout(() => void this.connect(), wait);
    this.listener.lost(wait);
  }

  private async read(abort: AbortController): Promise<void> {
    const resume: Record<string, string> = this.lastId === null ? {} : { 'Last-Event-ID': this.lastId };
    const answer = await fetch(this.path, {
      cache: 'no-store',
      credentials: 'omit',
      redirect: 'error',
      signal: abort.signal,
      headers: { ...bearer(this.secret()), Accept: 'text/event-stream', ...resume },
    });
    if (answer.status === 401 || answer.status === 403) {
      const why = await problem(answer);
      if (this.abort !== abort) return;
      this.stop();
      this.listener.refused(why);
      return;
    }
    if (!answer.ok || answer.body === null) return;
    this.pause = firstPause;
    this.listener.opened();
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    const cutter = new Cutter();
    for (;;) {
      const { done, value } = await reader.read();
      if (done || this.abort !== abort) return;
      this.guard();
      this.listener.heard();
      const batch = cutter.push(value);
      const last = batch.at(-1);
      if (last === undefined) continue;
      if (last.id !== null) this.lastId = last.id;
      this.listener.messages(batch);
    }
  }

  private guard(): void {
    window.clearTimeout(this.watchdog);
    this.watchdog = window.setTimeout(() => this.abort?.abort(), silence);
  }
}
