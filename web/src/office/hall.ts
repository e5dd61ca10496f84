// The hall: where each seat is, and which one is beside it. Pure.
//
// A layout may say where its seats are (x, y in any unit). Where it does not, sections stand one behind the other
// and rows are centred. Distances are in pitches: neighbours in a row are one apart.

import type { Plan, Seat } from './api';

export interface Placed extends Seat {
  section: string;
  row: string;
  x: number;
  y: number;
}

export interface Section {
  id: string;
  name: string;
  rows: { id: string; seats: Placed[] }[];
}

export interface Hall {
  sections: Section[];
  seats: Map<string, Placed>;
  /** All rows, from front to back. */
  rows: Placed[][];
  width: number;
  height: number;
  /** The names of the sections, with their one price, or the lowest and the highest. */
  labels: { text: string; prices: number[]; x: number; y: number }[];
}

const heading = 0.9;

export function hall(plan: Plan): Hall {
  const drawn = plan.sections.every(({ rows }) => rows.every(({ seats }) => seats.every((s) => s.x !== undefined && s.y !== undefined)));
  const sections = drawn ? asDrawn(plan) : stacked(plan);
  const rows = sections.flatMap((section) => section.rows.map((row) => row.seats)).filter((row) => row.length > 0);
  const all = rows.flat();
  const labels = sections.flatMap((section) => {
    const seats = section.rows.flatMap((row) => row.seats);
    if (seats.length === 0) return [];
    const left = Math.min(...seats.map((seat) => seat.x));
    const right = Math.max(...seats.map((seat) => seat.x));
    const prices = seats.map((seat) => seat.price).sort((a, b) => a - b);
    const ends = new Set([prices[0] ?? 0, prices.at(-1) ?? 0]);
    return [{ text: section.name, prices: [...ends], x: (left + right + 1) / 2, y: Math.min(...seats.map((seat) => seat.y)) - heading }];
  });
  return {
    sections,
    rows: [...rows].sort((a, b) => (a[0]?.y ?? 0) - (b[0]?.y ?? 0)),
    seats: new Map(all.map((seat) => [seat.id, seat])),
    width: Math.max(1, ...all.map((seat) => seat.x + 1)),
    height: Math.max(1, ...all.map((seat) => seat.y + 1)),
    labels,
  };
}

function stacked(plan: Plan): Section[] {
  const widest = Math.max(1, ...plan.sections.flatMap(({ rows }) => rows.map((row) => row.seats.length)));
  let y = 0;
  return plan.sections.map((section) => {
    y += heading;
    const rows = section.rows.map((row) => {
      const left = (widest - row.seats.length) / 2;
      const seats = row.seats.map((seat, i) => ({ ...seat, section: section.id, row: row.id, x: left + i, y }));
      y += 1;
      return { id: row.id, seats };
    });
    y += 0.4;
    return { id: section.id, name: section.name ?? section.id, rows };
  });
}

function asDrawn(plan: Plan): Section[] {
  const seats = plan.sections.flatMap(({ rows }) => rows.flatMap((row) => row.seats)) as (Seat & { x: number; y: number })[];
  const unit = pitch(plan);
  const left = Math.min(...seats.map((seat) => seat.x));
  const top = Math.min(...seats.map((seat) => seat.y));
  return plan.sections.map((section) => ({
    id: section.id,
    name: section.name ?? section.id,
    rows: section.rows.map((row) => ({
      id: row.id,
      seats: row.seats.map((seat) => ({
        ...seat,
        section: section.id,
        row: row.id,
        x: ((seat.x ?? 0) - left) / unit,
        y: ((seat.y ?? 0) - top) / unit + heading,
      })),
    })),
  }));
}

/** The least distance of two neighbours in a row. */
function pitch(plan: Plan): number {
  let least = Infinity;
  for (const { rows } of plan.sections) {
    for (const { seats } of rows) {
      for (let i = 1; i < seats.length; i++) {
        const [a, b] = [seats[i - 1], seats[i]];
        const apart = Math.hypot((a?.x ?? 0) - (b?.x ?? 0), (a?.y ?? 0) - (b?.y ?? 0));
        if (apart > 0) least = Math.min(least, apart);
      }
    }
  }
  return Number.isFinite(least) ? least : 1;
}

/** The seat that a key leads to, or undefined: not a key of ours, or there is nothing. */
export function beside(from: Hall, id: string, key: string): string | undefined {
  const seat = from.seats.get(id);
  if (seat === undefined) return undefined;
  const at = from.rows.findIndex((row) => row.includes(seat));
  const row = from.rows[at] ?? [];
  const place = row.indexOf(seat);
  switch (key) {
    case 'ArrowLeft':
      return row[place - 1]?.id;
    case 'ArrowRight':
      return row[place + 1]?.id;
    case 'ArrowUp':
      return nearest(from.rows, at, -1, seat);
    case 'ArrowDown':
      return nearest(from.rows, at, 1, seat);
    case 'Home':
      return row[0]?.id;
    case 'End':
      return row.at(-1)?.id;
    case 'PageUp':
      return from.rows[0]?.[0]?.id;
    case 'PageDown':
      return from.rows.at(-1)?.[0]?.id;
    default:
      return undefined;
  }
}

/** In the next row in that direction; rows that stand beside this one, at the same height, are not next. */
function nearest(rows: Placed[][], at: number, step: 1 | -1, seat: Placed): string | undefined {
  for (let i = at + step; i >= 0 && i < rows.length; i += step) {
    const row = rows[i] ?? [];
    if (Math.abs((row[0]?.y ?? 0) - seat.y) < 0.25) continue;
    const level = rows.filter((other) => Math.abs((other[0]?.y ?? 0) - (row[0]?.y ?? 0)) < 0.25).flat();
    return level.reduce((best, one) => (Math.abs(one.x - seat.x) < Math.abs(best.x - seat.x) ? one : best), row[0] as Placed).id;
  }
  return undefined;
}
