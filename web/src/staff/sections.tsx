// Totals by section, and areas by count. A section can be marked as a whole.

import { Text } from '../shared/bits';
import { count } from '../shared/words';
import type { Feed } from '../office/feed';
import type { Hall } from '../office/hall';
import type { Desk } from './desk';

const columns = ['seats', 'free', 'held', 'paying', 'sold', 'blocked'] as const;

export function Sections({ desk, hall, feed }: { desk: Desk; hall: Hall; feed: Feed }) {
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Totals by section">
      <table>
        <thead>
          <tr>
            <th scope="col">Section</th>
            {columns.map((name) => (
              <th scope="col">{name}</th>
            ))}
            <th scope="col">Mark</th>
          </tr>
        </thead>
        <tbody>
          {hall.sections.map((section) => {
            const ids = section.rows.flatMap((row) => row.seats.map((seat) => seat.id));
            const totals = feed.seats.count(ids);
            const all = ids.every((id) => desk.marked.has(id));
            return (
              <tr key={section.id}>
                <th scope="row">
                  <Text of={section.name} />
                </th>
                {columns.map((name) => (
                  <td>{count(totals[name])}</td>
                ))}
                <td>
                  <button type="button" aria-label={`${all ? 'Unmark' : 'Mark'} section ${section.name}`} onClick={() => desk.mark(ids, !all)}>
                    {all ? 'Unmark' : 'Mark'}
                  </button>
                </td>
              </tr>
            );
          })}
          {(desk.plan?.areas ?? []).map((area) => {
            const free = feed.seats.places(area.id);
            return (
              <tr key={area.id}>
                <th scope="row">
                  <Text of={area.name ?? area.id} />
                </th>
                <td>{count(area.capacity)}</td>
                <td>{free === undefined ? '–' : count(free)}</td>
                <td colSpan={5} class="quiet">
                  {free === undefined ? '' : `${count(area.capacity - free)} held or sold`}
                </td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </div>
  );
}
