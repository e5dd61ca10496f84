// What a seat is called and what its state means, in the words of those who look. Pure.

import type { SeatState } from './api';
import type { Hall, Placed } from './hall';
import { amount } from './money';

/** As the page shows a seat: the server's states, and those that only this buyer knows. */
export type Shown = SeatState | 'picked' | 'mine' | 'leaving';

export const buyerWords: Record<Shown, string> = {
  free: 'available',
  picked: 'picked by you',
  mine: 'held for you',
  leaving: 'held for you, to be given back',
  held: 'held by somebody else',
  paying: 'being paid by somebody else',
  sold: 'sold',
  blocked: 'not for sale',
};

export const staffWords: Record<Shown, string> = {
  free: 'free',
  picked: 'free',
  mine: 'held',
  leaving: 'held',
  held: 'held',
  paying: 'paying',
  sold: 'sold',
  blocked: 'blocked',
};

/** `Row C, seat 12`. */
export const place = (seat: { row: string; number: string | number }): string => `Row ${seat.row}, seat ${seat.number}`;

/** `Row C, seat 12, 45.00, available`. */
export const full = (seat: Placed, currency: string, state: string): string =>
  `${place(seat)}, ${amount(seat.price, currency)}, ${state}`;

/** Several seats in few words: `Row C, seats 4 and 5; Row D, seat 1`. A seat that is not known is called by its id. */
export function places(hall: Hall, ids: string[]): string {
  const rows = new Map<string, { row: string; section: string; numbers: string[] }>();
  const strange: string[] = [];
  for (const id of ids) {
    const seat = hall.seats.get(id);
    if (seat === undefined) {
      strange.push(id);
      continue;
    }
    const at = `${seat.section}\n${seat.row}`;
    const row = rows.get(at) ?? { row: seat.row, section: seat.section, numbers: [] };
    row.numbers.push(String(seat.number));
    rows.set(at, row);
  }
  const several = hall.sections.length > 1;
  const said = [...rows.values()].map(({ row, section, numbers }) => {
    const name = hall.sections.find(({ id }) => id === section)?.name ?? section;
    return `${several ? `${name}, row` : 'Row'} ${row}, ${numbers.length === 1 ? 'seat' : 'seats'} ${list(numbers)}`;
  });
  return [...said, ...strange].join('; ');
}

/** `4`, `4 and 5`, `4, 5 and 6`. */
export function list(words: string[]): string {
  return words.length < 2 ? (words[0] ?? '') : `${words.slice(0, -1).join(', ')} and ${words.at(-1)}`;
}

const reasons: Record<string, string> = {
  taken: 'is held by somebody else',
  sold: 'is sold',
  blocked: 'is not for sale',
  buyer_limit: 'is more than one buyer may have',
  orphan: 'would leave a single seat alone',
  no_block: 'there are not so many seats together',
  not_on_sale: 'is not on sale',
  frozen: 'cannot be sold at the moment',
};

/** Why a seat was lost. A reason that is new to this page is shown as the server says it. */
export const why = (reason: string): string => reasons[reason] ?? reason.replaceAll('_', ' ');
