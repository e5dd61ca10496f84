// What is known of every seat and area of one event. Pure: it is told, and remembers.
//
// Law: news is numbered without gaps. Old news changes nothing; a gap means that something is missing, and whoever
// keeps this has to ask for the whole again.

import type { Availability, SeatLine, SeatsEvent, SeatState, Totals } from './api';

export class Seats {
  seq = 0;
  /** At least one answer has come. */
  begun = false;
  private states = new Map<string, SeatState>();
  private lines = new Map<string, SeatLine>();
  private free = new Map<string, number>();

  /** Seats that are not listed are free. */
  state(id: string): SeatState {
    return this.states.get(id) ?? 'free';
  }

  /** What staff are told beyond the state. */
  line(id: string): SeatLine | undefined {
    return this.lines.get(id);
  }

  places(area: string): number | undefined {
    return this.free.get(area);
  }

  /**
   * The whole of it. An answer that was overtaken by news is not taken: ask again. After a reset it is taken as it
   * is: the server's numbers may have gone back with its data.
   */
  take(all: Availability, anyway = false): boolean {
    if (!anyway && this.begun && all.seq < this.seq) return false;
    this.seq = all.seq;
    this.begun = true;
    this.states = new Map(all.seats.map(({ id, state }) => [id, state]));
    this.lines = new Map(all.seats.map((line) => [line.id, line]));
    this.free = new Map((all.areas ?? []).map(({ id, free }) => [id, free]));
    return true;
  }

  /** Says which seats changed, or null where something is missing before it. */
  hear(news: SeatsEvent): string[] | null {
    if (news.seq <= this.seq) return [];
    if (news.seq > this.seq + 1) return null;
    this.seq = news.seq;
    const changed: string[] = [];
    for (const { id, state } of news.seats ?? []) {
      if (this.state(id) !== state) changed.push(id);
      this.states.set(id, state);
      this.lines.delete(id);
    }
    for (const { id, free } of news.areas ?? []) this.free.set(id, free);
    return changed;
  }

  count(ids: Iterable<string>): Totals {
    const totals: Totals = { seats: 0, free: 0, held: 0, paying: 0, sold: 0, blocked: 0 };
    for (const id of ids) {
      totals.seats += 1;
      totals[this.state(id)] += 1;
    }
    return totals;
  }
}
