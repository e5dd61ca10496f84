// Queues: how much waits, is at work, was tried before, is dead; how old the oldest is; how many workers sleep.

import type { Queue } from './api';
import { Cell, Line, Table, type Shared } from './board';
import { figureNames, figuresOf } from './describe';
import { Ticking } from '../../shared/bits';
import { count, exact, span } from '../../shared/words';

export const figureMeanings = {
  ready: 'jobs that a worker can take now',
  delayed: 'jobs that wait for their moment, or to be tried again',
  taken: 'jobs that workers have; of a queue by key: keys',
  retried: 'waiting jobs that were tried before',
  dead: 'jobs that are not tried again, until you retry or drop them',
  oldest: 'how long the job that is ready the longest has waited',
  sleepers: 'workers that wait for a job (a SQLite store does not tell)',
} as const;

const columns = [
  { title: 'Queue' },
  ...Object.entries(figureMeanings).map(([title, means]) => ({ title, means })),
];

export function Queues({ rows, old, openName, onOpen }: Shared & { rows: Queue[] }) {
  return (
    <Table kind="queues" label="Queues" columns={columns} old={old}>
      {rows.map((row) => (
        <Line
          key={row.name}
          name={row.name}
          open={row.name === openName}
          does="Opens its dead letters and hot keys"
          onOpen={onOpen}
          tags={<Tags of={row} />}
        >
          {figureNames.map((name) => (
            <Cell label={name} kind={`figure ${name}${name === 'dead' && row.dead > 0 ? ' some-dead' : ''}`}>
              {figuresOf(row)[name]}
            </Cell>
          ))}
          <Cell label="oldest" kind="figure oldest">
            <Age since={row.oldest} />
          </Cell>
          <Cell label="sleepers" kind="figure sleepers">
            {count(row.sleepers)}
          </Cell>
        </Line>
      ))}
    </Table>
  );
}

export function Tags({ of }: { of: Queue }) {
  return (
    <>
      {of.paused && <span class="tag tag-paused">paused</span>}
      {of.byKey && <span class="tag">by key</span>}
    </>
  );
}

export function Age({ since }: { since: number | null }) {
  if (since === null) return <span class="none">–</span>;
  return <Ticking text={(now) => span(now - since, false)} exact={(now) => exact(now - since)} />;
}
