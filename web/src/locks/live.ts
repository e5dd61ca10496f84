// Keeps the page in step with the server.
//
// The stream of events says at once that something changed; the listing says what is true. Events carry neither
// remaining time nor the queue, and renewals and new waiters make no event, so the rows in view are asked for
// again: soon after an event among them, and every two seconds otherwise. A slow server is asked less often.
// What is out of view is not asked for: the cost of an open page does not grow with the number of leases.

import * as api from './api';
import type { Resource, Status } from './api';
import { now } from '../shared/clock';
import type { Message } from '../shared/cutter';
import { Listing, mostRows, type LeaseEvent } from './listing';
import { compareNames } from './order';
import { key, Problem, sentence } from '../shared/http';
import { Stream } from '../shared/sse';

/** connecting: nothing shown yet · live · reconnecting: what is shown is old · key: waits for a key. */
export type Link = 'connecting' | 'live' | 'reconnecting' | 'key';

const pageSize = 200;
/** More events than this at once are taken as one: look again. */
const flood = 500;
const calmPause = 2000;
const eagerPause = 200;
/** An election is a lease on a resource of this name. */
export const electionPrefix = 'election/';

export interface Detail {
  name: string;
  resource: Resource | null;
  /** The first answer is still awaited. */
  loading: boolean;
  error: string | null;
}

interface View {
  listing: Listing;
  first: string;
  last: string;
}

export class Live {
  link: Link = 'connecting';
  /** The last moment at which what is shown was known to be true. */
  heardAt = now();
  /** Why the server refuses or fails, in its own sentence. */
  error: string | null = null;
  status: Status | null = null;
  statusAt = 0;
  all = new Listing('');
  /** Names that begin with the query, where `all` does not reach. */
  hits: Listing | null = null;
  detail: Detail | null = null;
  /** Counts changes, so that views know when to look. */
  version = 0;
  /** Rises with every key and every start: answers of an earlier one are dropped. */
  era = 0;
  /** Called when a leader may have come, gone, or changed its value. */
  onElection: () => void = () => {};

  private readonly listeners = new Set<() => void>();
  private readonly stream = new Stream('/v1/watch', key.get, {
    opened: () => this.opened(),
    heard: () => this.heard(),
    messages: (batch) => this.messages(batch),
    lost: () => this.lost(),
    refused: (problem) => this.refused(problem),
  });
  private shown = true;
  private lastEvent: string | null = null;
  private views: View[] = [];
  private sweeping = false;
  /** Something changed while a sweep was under way. */
  private again = false;
  private loading = false;
  /** After a failure the list does not ask for more at once. */
  private loadAgainAt = 0;
  private detailsAsked = 0;
  private timers: Partial<Record<'sweep' | 'status' | 'detail' | 'notify', number>> = {};
  /** How long the last listing took: a server that needs long is asked less often. */
  private took = 0;

  start(): void {
    this.era += 1;
    this.link = 'connecting';
    this.error = null;
    this.status = null;
    this.all = new Listing('');
    this.hits = null;
    this.lastEvent = null;
    this.stream.start();
    void this.refreshStatus();
    this.changed();
    document.addEventListener('visibilitychange', this.wake);
  }

  onChange(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  get stale(): boolean {
    return this.link === 'reconnecting';
  }

  /** Nobody looks at leases: the page is hidden, or another tab of it is shown. */
  private get idle(): boolean {
    return document.hidden || !this.shown;
  }

  /** Whether leases are shown at all. */
  show(shown: boolean): void {
    if (this.shown === shown) return;
    this.shown = shown;
    this.wake();
  }

  get mayRevoke(): boolean {
    return this.status?.role.includes('admin') ?? false;
  }

  useKey(value: string): void {
    key.set(value);
    this.start();
  }

  forgetKey(): void {
    key.forget();
    this.close();
    this.start();
  }

  // --- what is in view

  /** Asks the server for names that begin with the query, unless all names are here anyway. */
  search(query: string): void {
    if (query === '' || this.all.complete) {
      if (this.hits !== null) {
        this.hits = null;
        this.changed();
      }
      return;
    }
    if (this.hits?.prefix === query) return;
    this.hits = new Listing(query);
    this.changed();
    void this.load(this.hits);
  }

  /** The list says which rows it shows, as spans of listings. */
  look(views: View[]): void {
    const moved = views.some((view, i) => view.first !== this.views[i]?.first || view.last !== this.views[i]?.last);
    this.views = views;
    if (moved && this.link === 'live') this.later('sweep', eagerPause * 2, () => this.sweep());
  }

  /** Loads the next page. */
  async more(listing: Listing): Promise<void> {
    const pausing = now() < this.loadAgainAt;
    if (this.loading || pausing || listing.complete || !listing.begun || listing.rows.length >= mostRows) return;
    await this.load(listing);
  }

  private async load(listing: Listing): Promise<void> {
    const { era } = this;
    this.loading = true;
    try {
      const after = listing.rows.at(-1)?.name ?? null;
      const mark = listing.mark();
      const page = await this.list(listing, after, pageSize);
      if (era !== this.era) return;
      if (listing.splice(after, page, mark)) this.lookSoon();
      this.changed();
    } catch (error) {
      this.loadAgainAt = now() + calmPause;
      if (era === this.era) this.failed(error);
    } finally {
      this.loading = false;
    }
  }

  private async list(listing: Listing, after: string | null, limit: number): Promise<api.Page> {
    const asked = now();
    const page = await api.list(listing.prefix, after, limit);
    this.took = now() - asked;
    this.error = null;
    return page;
  }

  /** Asks again for what is in view. */
  private async sweep(): Promise<void> {
    if (this.sweeping) this.again = true;
    if (this.sweeping || this.idle || this.link === 'key') return;
    const { era } = this;
    this.sweeping = true;
    this.again = false;
    try {
      if (!this.all.begun) await this.load(this.all);
      if (this.hits !== null && !this.hits.begun) await this.load(this.hits);
      // Nothing in view can also mean that nothing is known yet: then the beginning is asked for.
      const views = this.views.length > 0 ? this.views : [{ listing: this.all, first: '', last: '' }];
      for (const view of views) await this.refresh(view, era);
    } catch (error) {
      if (era === this.era) this.failed(error);
    } finally {
      this.sweeping = false;
      if (!this.loading) this.rest();
      const pause = this.again ? Math.max(eagerPause, this.took * 3) : Math.max(calmPause, this.took * 10);
      if (this.link === 'live') this.later('sweep', pause, () => this.sweep());
    }
  }

  /** One span of one listing, in pages. A filter can make it long: then a few pages each time round. */
  private async refresh({ listing, first, last }: View, era: number): Promise<void> {
    if (!listing.begun) return;
    let from = listing.place(first);
    for (let pages = 0; pages < 5; pages++) {
      const after = listing.rows[from - 1]?.name ?? null;
      const want = Math.min(pageSize, Math.max(50, listing.place(last) - from + 20));
      const mark = listing.mark();
      const page = await this.list(listing, after, want);
      if (era !== this.era) return;
      if (listing.splice(after, page, mark)) this.again = true;
      this.changed();
      const reached = page.resources.at(-1)?.name;
      if (!page.more || reached === undefined || compareNames(reached, last) >= 0) return;
      from = listing.place(reached) + 1;
    }
  }

  private rest(): void {
    this.all.rest();
    this.hits?.rest();
  }

  // --- one resource

  open(name: string): void {
    if (this.detail?.name === name) return;
    const known = this.all.get(name) ?? this.hits?.get(name) ?? null;
    this.detail = { name, resource: known, loading: known === null, error: null };
    this.changed();
    void this.refreshDetail();
  }

  close(): void {
    this.detail = null;
    window.clearTimeout(this.timers.detail);
    delete this.timers.detail;
    this.changed();
  }

  private async refreshDetail(): Promise<void> {
    const name = this.detail?.name;
    if (name === undefined || document.hidden || this.link === 'key') return;
    const { era } = this;
    const asked = ++this.detailsAsked;
    let update: Partial<Detail>;
    try {
      update = { resource: await api.inspect(name), error: null };
    } catch (error) {
      if (era !== this.era) return;
      update = { error: this.stale ? null : sentence(error) };
      this.failed(error);
    }
    if (era !== this.era || this.detail?.name !== name || asked !== this.detailsAsked) return;
    this.detail = { ...this.detail, ...update, loading: false };
    this.changed();
    this.later('detail', calmPause, () => this.refreshDetail());
  }

  async revoke(name: string, reason: string): Promise<number> {
    const ended = await api.revoke(name, reason);
    this.later('detail', 0, () => this.refreshDetail());
    this.later('sweep', 0, () => this.sweep());
    this.later('status', 0, () => this.refreshStatus());
    return ended;
  }

  // --- rates, recent endings, promises

  private async refreshStatus(): Promise<void> {
    if (document.hidden || this.link === 'key') return;
    const { era } = this;
    try {
      const status = await api.status();
      if (era !== this.era) return;
      this.status = status;
      this.statusAt = now();
      if (this.link === 'reconnecting') this.stream.hurry();
      this.changed();
    } catch (error) {
      if (era !== this.era) return;
      this.failed(error);
    }
    this.later('status', calmPause, () => this.refreshStatus());
  }

  // --- the stream

  private opened(): void {
    this.link = 'live';
    this.heard();
    // Whatever the stream resumes from, the listing is asked again: nothing can be missing after a break.
    this.lookAgain();
  }

  private lookAgain(): void {
    this.later('sweep', 0, () => this.sweep());
    this.later('status', 0, () => this.refreshStatus());
    this.later('detail', 0, () => this.refreshDetail());
    this.changed();
  }

  private heard(): void {
    this.heardAt = now();
  }

  private lost(): void {
    if (this.link !== 'connecting') this.link = 'reconnecting';
    else if (this.error === null) this.error = 'The server does not answer. Trying again.';
    this.changed();
  }

  private messages(batch: Message[]): void {
    if (batch.length > flood) {
      this.lastEvent = batch.at(-1)?.id ?? null;
      this.lookAgain();
      this.onElection();
      return;
    }
    for (const message of batch) this.message(message);
  }

  private message({ event, data, id }: Message): void {
    const said = parsed(data);
    if (event === 'reset' || said === null) {
      this.lastEvent = id;
      this.lookAgain();
      return;
    }
    if (this.lastEvent !== null && said.prev !== null && said.prev !== this.lastEvent) this.lookAgain();
    this.lastEvent = id;
    if (isKind(event)) this.apply({ ...said, kind: event });
  }

  private apply(event: LeaseEvent): void {
    const changed = this.all.apply(event, now());
    const hit = this.hits?.apply(event, now()) ?? false;
    if (event.kind === 'lapsed' || event.kind === 'revoked') {
      this.later('status', eagerPause, () => this.refreshStatus());
    }
    // Nobody looks: no question is open, and on return everything is asked again.
    if (this.idle) this.rest();
    if (event.resources.some((name) => name.startsWith(electionPrefix))) this.onElection();
    if (this.detail !== null && event.resources.includes(this.detail.name)) {
      this.later('detail', eagerPause, () => this.refreshDetail());
    }
    if (!changed && !hit) return;
    if (event.resources.some((name) => this.inView(name))) this.lookSoon();
    this.changed();
  }

  private lookSoon(): void {
    this.later('sweep', Math.max(eagerPause, this.took * 3), () => this.sweep());
  }

  private inView(name: string): boolean {
    if (this.views.length === 0) return true;
    return this.views.some(({ listing, first, last }) => {
      if (!name.startsWith(listing.prefix)) return false;
      const atEnd = listing.complete && listing.rows.at(-1)?.name === last;
      return compareNames(name, first) >= 0 && (atEnd || compareNames(name, last) <= 0);
    });
  }

  // --- failing

  private refused(problem: Problem): void {
    this.failed(problem);
    if (this.link !== 'key') {
      // 403: the key is good for something else. Ask for another one, and say why.
      this.needKey(problem.message);
    }
  }

  /** Asks for another key where the server does not accept this one. Says whether that was it. */
  refusedKey(error: unknown): boolean {
    if (!(error instanceof Problem) || error.status !== 401) return false;
    this.needKey(key.get() === null ? null : 'The server does not accept this key.');
    return true;
  }

  private failed(error: unknown): void {
    if (this.refusedKey(error)) return;
    // A call that did not reach the server: the stream notices too, and says so.
    this.error = error instanceof Problem ? error.message : this.error;
    this.changed();
  }

  private needKey(why: string | null): void {
    this.era += 1;
    this.stream.stop();
    // A key that is refused is of no use here, and a secret is not kept without use.
    key.forget();
    this.link = 'key';
    this.error = why;
    this.all = new Listing('');
    this.hits = null;
    this.changed();
  }

  // --- timers

  private readonly wake = (): void => {
    if (!this.idle && this.link === 'live') this.lookAgain();
  };

  /** One timer for each task: the sooner wish wins. */
  private readonly due: Partial<Record<string, number>> = {};

  private later(task: 'sweep' | 'status' | 'detail', ms: number, run: () => unknown): void {
    const at = now() + ms;
    if (this.timers[task] !== undefined && (this.due[task] ?? 0) <= at) return;
    window.clearTimeout(this.timers[task]);
    this.due[task] = at;
    this.timers[task] = window.setTimeout(() => {
      delete this.timers[task];
      void run();
    }, ms);
  }

  /** Views are told at most ten times a second. */
  private changed(): void {
    this.version += 1;
    this.timers.notify ??= window.setTimeout(() => {
      delete this.timers.notify;
      for (const listener of this.listeners) listener();
    }, 50);
  }
}

type Said = LeaseEvent & { prev: string | null };

function parsed(data: string): Said | null {
  try {
    const said = JSON.parse(data) as Partial<Said> & { prev?: string | number | null };
    return {
      kind: 'granted',
      token: said.token ?? null,
      resources: said.resources ?? [],
      holder: said.holder ?? '',
      prev: said.prev === undefined || said.prev === null ? null : String(said.prev),
    };
  } catch {
    return null;
  }
}

const isKind = (event: string): event is LeaseEvent['kind'] =>
  ['granted', 'relabelled', 'released', 'lapsed', 'revoked'].includes(event);
