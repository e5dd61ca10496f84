// Every hold: whose, how old, how often renewed, how long it lasts. The oldest first: those are asked about.

import { Text } from '../shared/bits';
import { count, span } from '../shared/words';
import type { SeatLine } from '../office/api';
import type { Feed } from '../office/feed';
import type { Hall } from '../office/hall';
import { places } from '../office/labels';
import type { Desk } from './desk';

const most = 200;

export function Holds({ desk, hall, feed }: { desk: Desk; hall: Hall; feed: Feed }) {
  const holds = new Map<string, { line: SeatLine; seats: string[] }>();
  for (const id of hall.seats.keys()) {
    const line = feed.seats.line(id);
    if (line === undefined || (line.state !== 'held' && line.state !== 'paying')) continue;
    const at = line.hold_id ?? id;
    const hold = holds.get(at) ?? { line, seats: [] };
    hold.seats.push(id);
    holds.set(at, hold);
  }
  const rows = [...holds.values()].sort((a, b) => (b.line.age_ms ?? 0) - (a.line.age_ms ?? 0));
  if (rows.length === 0) return <p class="quiet">Nothing is held.</p>;
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Holds">
      <table>
        <thead>
          <tr>
            <th scope="col">Seats</th>
            <th scope="col">State</th>
            <th scope="col">Holder</th>
            <th scope="col">Age</th>
            <th scope="col">Renewals</th>
            <th scope="col">Left</th>
          </tr>
        </thead>
        <tbody>
          {rows.slice(0, most).map(({ line, seats }) => (
            <tr key={line.hold_id ?? line.id}>
              <th scope="row">
                <button type="button" class="link" onClick={() => desk.show(seats[0] ?? null)}>
                  {places(hall, seats)}
                </button>
              </th>
              <td>{line.state}</td>
              <td>
                <Text of={line.buyer ?? ''} />
              </td>
              <td>{line.age_ms === undefined ? '–' : span(line.age_ms, false)}</td>
              <td>{line.renewals === undefined ? '–' : count(line.renewals)}</td>
              <td>{line.remaining_ms === undefined ? '–' : span(line.remaining_ms, false)}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {rows.length > most && <p class="quiet">and {count(rows.length - most)} more</p>}
    </div>
  );
}
