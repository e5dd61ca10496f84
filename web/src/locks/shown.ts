// Which rows are shown for a query, and which parts of the server's list they come from.
//
// Without a query: the list as far as it is loaded. With one: what contains it, among all that is loaded, at once;
// and, where not everything is loaded, names that begin with it, from the server. The page says which it was.

import type { Resource } from './api';
import { contains, type Listing } from './listing';
import type { Live } from './live';
import { count, counted } from '../shared/words';

interface Span {
  listing: Listing;
  first: string;
  last: string;
}

export class Shown {
  constructor(
    readonly query: string,
    readonly rows: Resource[],
    /** So many of the first rows are of `head`, the others of `tail`. */
    private readonly split: number,
    private readonly head: Listing,
    private readonly tail: Listing,
    /** The listing to load more of when the end comes into view. */
    readonly growing: Listing | null,
    readonly summary: string,
  ) {}

  /** The spans of the listings that rows `first` to `last` cover. */
  spans(first: number, last: number): Span[] {
    const spans: Span[] = [];
    const add = (listing: Listing, from: number, to: number) => {
      const a = this.rows[from];
      const b = this.rows[Math.min(to, this.rows.length) - 1];
      if (from < to && a !== undefined && b !== undefined) spans.push({ listing, first: a.name, last: b.name });
    };
    add(this.head, Math.max(0, first), Math.min(last, this.split));
    add(this.tail, Math.max(first, this.split), last);
    return spans;
  }
}

export function shown(live: Live, query: string): Shown {
  const { all, hits } = live;
  if (query === '') {
    const more = all.complete ? '' : ' loaded, more as you scroll';
    const summary = all.begun ? `${counted(all.rows.length, 'resource')}${more}` : '';
    return new Shown(query, all.rows, all.rows.length, all, all, all.complete ? null : all, summary);
  }
  const lower = query.toLowerCase();
  if (hits === null || hits.prefix !== query || !hits.begun) {
    const found = all.rows.filter((row) => contains(row, lower));
    const of = `${count(found.length)} of ${counted(all.rows.length, 'resource')}`;
    const summary = all.complete ? of : `${of} loaded; asking the server…`;
    return new Shown(query, found, found.length, all, all, null, summary);
  }
  const begin = `${count(hits.rows.length)}${hits.complete ? '' : ' or more'} begin with it`;
  if (!hits.complete) return new Shown(query, hits.rows, hits.rows.length, hits, all, hits, begin);
  const others = all.rows.filter((row) => !row.name.startsWith(query) && contains(row, lower));
  const summary = `${begin}; ${count(others.length)} more of the ${count(all.rows.length)} loaded contain it`;
  return new Shown(query, [...hits.rows, ...others], hits.rows.length, hits, all, null, summary);
}
