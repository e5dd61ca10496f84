// The live hall. A click opens a seat; with Mark on (or Shift held) it marks seats for what is done next.

import { useState } from 'preact/hooks';
import { Legend } from '../office/glyphs';
import type { Feed } from '../office/feed';
import type { Hall } from '../office/hall';
import { staffWords, type Shown } from '../office/labels';
import { SeatList } from '../office/list';
import { SeatMap, type Look } from '../office/map';
import type { Desk } from './desk';

const states: Shown[] = ['free', 'held', 'paying', 'sold', 'blocked'];

export function HallView({ desk, hall, feed }: { desk: Desk; hall: Hall; feed: Feed }) {
  const [list, setList] = useState(false);
  const [marking, setMarking] = useState(false);
  const look: Look = {
    hall,
    currency: desk.settings?.currency ?? '',
    shownAs: (id) => feed.seats.state(id),
    word: (id) => word(feed, id),
    pressed: (id) => (marking ? desk.marked.has(id) : desk.open === id),
    marked: (id) => desk.marked.has(id),
    inside: (id) => age(feed, id),
    onPick: (id, event) => {
      if (event instanceof KeyboardEvent) desk.mark([id], true);
      else if (marking || event.shiftKey) desk.mark([id], !desk.marked.has(id));
      else desk.show(id);
    },
  };
  return (
    <>
      <div class="filters">
        <label class="check">
          <input type="checkbox" checked={marking} onChange={(event) => setMarking(event.currentTarget.checked)} />
          Mark seats by clicking (also: Shift and click, Shift and arrows)
        </label>
        <label class="check">
          <input type="checkbox" checked={list} onChange={(event) => setList(event.currentTarget.checked)} />
          As a list
        </label>
      </div>
      {list ? <SeatList {...look} /> : <SeatMap {...look} />}
      <Legend states={states} words={staffWords} />
    </>
  );
}

/** The age of a hold in minutes, in the place of the seat's number: old ones are seen from afar. */
function age(feed: Feed, id: string): string | undefined {
  const ms = feed.seats.line(id)?.age_ms;
  return ms === undefined ? undefined : `${Math.floor(ms / 60_000)}m`;
}

/** `held by b-17 for 2m, renewed once`. In whole minutes: a label that changes every second is drawn every second. */
function word(feed: Feed, id: string): string {
  const state = staffWords[feed.seats.state(id)];
  const line = feed.seats.line(id);
  if (line?.buyer === undefined) return line?.reason === undefined ? state : `${state}: ${line.reason}`;
  const renewals = line.renewals ?? 0;
  const often = renewals === 0 ? '' : renewals === 1 ? ', renewed once' : `, renewed ${renewals} times`;
  return `${state} by ${line.buyer} for ${age(feed, id) ?? '?'}${often}`;
}
