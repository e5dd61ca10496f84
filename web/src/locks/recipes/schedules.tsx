// Schedules: the last run, the next tick, and a strip of the last thirty runs.

import type { Run, Schedule } from './api';
import { Cell, Line, Table, type Shared } from './board';
import { lateness, sentenceOf, signOf, wasRun } from './describe';
import { Text, Ticking, Until } from '../../shared/bits';
import { ago, count, plain, utc } from '../../shared/words';

const columns = [
  { title: 'Schedule' },
  { title: 'Last run' },
  { title: 'Next' },
  { title: 'Last 30 runs', means: 'The newest is on the right' },
];

export function Schedules({ rows, old, openName, onOpen }: Shared & { rows: Schedule[] }) {
  return (
    <Table kind="schedules" label="Schedules" columns={columns} old={old}>
      {rows.map((row) => (
        <Line
          key={row.name}
          name={row.name}
          open={row.name === openName}
          does="Opens its runs"
          onOpen={onOpen}
          below={
            <div class="spec">
              <Text of={row.spec} />
            </div>
          }
        >
          <Cell label="last run" kind="last">
            <Last run={row.runs[0]} />
          </Cell>
          <Cell label="next" kind="next">
            {row.next === null ? <span class="none">never</span> : <Until {...row.next} />}
          </Cell>
          <Cell label="last 30 runs" kind="strip-cell">
            <Strip runs={row.runs} />
          </Cell>
        </Line>
      ))}
    </Table>
  );
}

export function State({ run }: { run: Run }) {
  return (
    <span class={`run-state run-${run.state}`}>
      <span aria-hidden="true">{signOf(run.state)}</span> {run.state}
      {run.ticks > 1 && ` × ${count(run.ticks)}`}
    </span>
  );
}

function Last({ run }: { run: Schedule['runs'][number] | undefined }) {
  if (run === undefined) return <span class="none">none yet</span>;
  return (
    <>
      <div class="last-line">
        <State run={run} />
        <time class="when" dateTime={run.tick} title={utc(run.tick)}>
          <Ticking text={(now) => ago(now - run.moment)} />
        </time>
      </div>
      <div class="last-line quiet">
        {wasRun(run) ? (
          <>
            {run.machine !== null && <Text of={run.machine} />}
            <span class="late">{lateness(run.late_ms)}</span>
          </>
        ) : (
          'nobody ran it'
        )}
      </div>
    </>
  );
}

const stripLength = 30;

/** From old to new, the newest always at the right end: what comes does not move the rest about. */
function Strip({ runs }: { runs: Run[] }) {
  const marks = runs.slice(0, stripLength).reverse();
  return (
    <ol class="strip" aria-label="Last runs, the newest last">
      {marks.map((run, i) => (
        <li
          key={run.tick}
          class={`mark run-${run.state}`}
          style={i === 0 ? { gridColumnStart: stripLength - marks.length + 1 } : {}}
          title={plain(sentenceOf(run))}
        >
          <span aria-hidden="true">{signOf(run.state)}</span>
          <span class="hidden">{plain(sentenceOf(run))}</span>
        </li>
      ))}
    </ol>
  );
}
