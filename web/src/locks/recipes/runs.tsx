// The runs of one schedule, the newest first, with the end of what each wrote.

import type { RunWithTail, Schedule } from './api';
import { lateness, ticksOf, took, wasRun } from './describe';
import type { Pane } from './recipes';
import { State } from './schedules';
import { PaneHead } from '../pane';
import { Block, Text, Until } from '../../shared/bits';

interface Props {
  pane: Pane<RunWithTail>;
  /** Missing: it is not, or not yet, in the list. */
  schedule: Schedule | undefined;
  old: boolean;
  onClose: () => void;
}

export function Runs({ pane, schedule, old, onClose }: Props) {
  const { rows, error } = pane;
  return (
    <section class={`detail${old ? ' stale' : ''}`} aria-labelledby="detail-title">
      <PaneHead name={pane.name} error={error} note={null} onClose={onClose} />
      {schedule !== undefined && (
        <p class="facts">
          <Text of={schedule.spec} /> · next{' '}
          {schedule.next === null ? 'never' : <Until moment={schedule.next.moment} instant={schedule.next.instant} />}
        </p>
      )}
      {rows === null && error === null && <p class="quiet">Asking the server…</p>}
      {rows?.length === 0 && <p class="quiet">It has not run yet.</p>}
      {rows !== null && rows.length > 0 && (
        <>
          <h3>Runs, the newest first</h3>
          <ol class="runs">
            {rows.map((run) => (
              <RunItem key={run.tick} run={run} />
            ))}
          </ol>
        </>
      )}
    </section>
  );
}

function RunItem({ run }: { run: RunWithTail }) {
  const length = took(run);
  const bad = run.state === 'failed' || run.state === 'lost';
  return (
    <li>
      <div class="last-line">
        <State run={run} />
        <span class="when">{ticksOf(run)}</span>
      </div>
      {wasRun(run) && (
        <div class="run-facts quiet">
          {run.machine !== null && <Text of={run.machine} />}
          <span>{lateness(run.late_ms)}</span>
          {length !== null && <span>took {length}</span>}
          {run.code !== null && run.code !== 0 && <span>exit code {run.code}</span>}
        </div>
      )}
      {run.tail !== null && run.tail !== '' && (
        <details open={bad}>
          <summary>End of its output</summary>
          <Block scrolls of={run.tail.replace(/\n+$/, '')} label={`End of the output, run of ${ticksOf(run)}`} />
        </details>
      )}
    </li>
  );
}
