// One queue: pause and resume, its hot keys, and its dead letters with what can be done about them.

import { useState } from 'preact/hooks';
import type { DeadLetter, Queue } from './api';
import { cut, pretty } from './body';
import type { Question } from './confirm';
import { figuresOf } from './describe';
import { Age, Tags } from './queues';
import type { Pane } from './recipes';
import { Block, Text, Ticking } from '../../shared/bits';
import { PaneHead } from '../pane';
import { ago, count, counted, span } from '../../shared/words';

interface Props {
  pane: Pane<DeadLetter>;
  /** Missing: it is not, or not yet, in the list. */
  queue: Queue | undefined;
  old: boolean;
  mayAct: boolean;
  note: string | null;
  onAsk: (question: Question) => void;
  onClose: () => void;
}

export function QueuePane({ pane, queue, old, mayAct, note, onAsk, onClose }: Props) {
  const { rows, error } = pane;
  return (
    <section class={`detail${old ? ' stale' : ''}`} aria-labelledby="detail-title">
      <PaneHead name={pane.name} error={error} note={note} onClose={onClose} />
      {queue !== undefined && (
        <div class="queue-facts">
          <p class="facts">
            {figuresOf(queue).waiting} waiting, {figuresOf(queue).taken} taken <Tags of={queue} />
          </p>
          {mayAct && (
            <button
              type="button"
              aria-disabled={old}
              onClick={() => !old && onAsk({ what: queue.paused ? 'resume' : 'pause', queue: pane.name, jobs: [] })}
            >
              {queue.paused ? 'Resume…' : 'Pause…'}
            </button>
          )}
        </div>
      )}
      {queue !== undefined && queue.hotKeys.length > 0 && <HotKeys queue={queue} />}
      {rows === null && error === null && <p class="quiet">Asking the server…</p>}
      {rows !== null && (
        <Letters
          rows={rows}
          all={Math.max(rows.length, queue?.dead ?? 0)}
          mayAct={mayAct}
          old={old}
          onAct={(what, jobs) => onAsk({ what, queue: pane.name, jobs })}
        />
      )}
    </section>
  );
}

function HotKeys({ queue }: { queue: Queue }) {
  return (
    <>
      <h3>Keys with the most jobs</h3>
      <ol class="hot-keys">
        {queue.hotKeys.map((hot) => (
          <li key={hot.key}>
            <Text of={hot.key} />
            <span class="jobs">{counted(hot.jobs, 'job')}</span>
            <span class="when">
              oldest <Age since={hot.oldest} />
            </span>
          </li>
        ))}
      </ol>
    </>
  );
}

interface LettersProps {
  rows: DeadLetter[];
  /** So many there are; the server lists the first of them. */
  all: number;
  mayAct: boolean;
  old: boolean;
  onAct: (what: 'retry' | 'drop', jobs: string[]) => void;
}

function Letters({ rows, all, mayAct, old, onAct }: LettersProps) {
  const [marked, setMarked] = useState<ReadonlySet<string>>(new Set());
  if (rows.length === 0) return <p class="quiet">No dead letters.</p>;
  // Of what is shown: a letter that is gone is not acted on, and one that came is not chosen unseen.
  const chosen = rows.map(({ job }) => job).filter((job) => marked.has(job));
  const mark = (jobs: string[], on: boolean) =>
    setMarked((old) => new Set(on ? [...old, ...jobs] : [...old].filter((job) => !jobs.includes(job))));
  const act = (what: 'retry' | 'drop', jobs: string[]) => {
    if (!old && jobs.length > 0) onAct(what, jobs);
  };
  return (
    <>
      <h3>
        Dead letters{all > rows.length && `, ${count(rows.length)} of ${count(all)}`}
      </h3>
      {mayAct ? (
        <div class="letters-bar">
          <label class="check">
            <input
              type="checkbox"
              checked={chosen.length === rows.length}
              ref={(box) => {
                if (box !== null) box.indeterminate = chosen.length > 0 && chosen.length < rows.length;
              }}
              onChange={(event) => mark(rows.map(({ job }) => job), event.currentTarget.checked)}
            />
            All {count(rows.length)} shown
          </label>
          <span class="chosen" role="status">
            {chosen.length === 0 ? 'none chosen' : `${count(chosen.length)} chosen`}
          </span>
          <Acts of="what is chosen" disabled={old || chosen.length === 0} onAct={(what) => act(what, chosen)} />
        </div>
      ) : (
        <p class="quiet">Retry, drop and pause want the role admin.</p>
      )}
      <ul class="letters">
        {rows.map((row) => (
          <Letter
            key={row.job}
            row={row}
            mayAct={mayAct}
            old={old}
            chosen={marked.has(row.job)}
            onChoose={(on) => mark([row.job], on)}
            onAct={(what) => act(what, [row.job])}
          />
        ))}
      </ul>
    </>
  );
}

interface ActsProps {
  of: string;
  disabled: boolean;
  onAct: (what: 'retry' | 'drop') => void;
}

function Acts({ of, disabled, onAct }: ActsProps) {
  return (
    <span class="acts">
      <button type="button" aria-disabled={disabled} aria-label={`Retry ${of}`} onClick={() => onAct('retry')}>
        Retry…
      </button>
      <button type="button" class="danger" aria-disabled={disabled} aria-label={`Drop ${of}`} onClick={() => onAct('drop')}>
        Drop…
      </button>
    </span>
  );
}

interface LetterProps {
  row: DeadLetter;
  mayAct: boolean;
  old: boolean;
  chosen: boolean;
  onChoose: (on: boolean) => void;
  onAct: (what: 'retry' | 'drop') => void;
}

function Letter({ row, mayAct, old, chosen, onChoose, onAct }: LetterProps) {
  const body = pretty(row.body);
  return (
    <li class={chosen ? 'chosen-letter' : ''}>
      <div class="letter-head">
        {mayAct && (
          <input
            type="checkbox"
            aria-label={`Choose job ${row.job}`}
            checked={chosen}
            onChange={(event) => onChoose(event.currentTarget.checked)}
          />
        )}
        <span class="letter-id">job {row.job}</span>
        {mayAct && <Acts of={`job ${row.job}`} disabled={old} onAct={onAct} />}
      </div>
      <div class="run-facts quiet">
        <span>{counted(row.attempt, 'attempt')}</span>
        <span>
          dead for <Ticking text={(now) => span(now - row.died, false)} />
        </span>
        <span>
          pushed <Ticking text={(now) => ago(now - row.made)} />
        </span>
        {row.key !== null && (
          <span class="of-key">
            key <Text of={row.key} />
          </span>
        )}
      </div>
      {row.error !== null && row.error !== '' && <Cut {...cut(row.error)} label={`Error of job ${row.job}`} kind="error" />}
      <Cut {...body} label={`Body of job ${row.job}`} kind="body" />
    </li>
  );
}

function Cut({ text, rest, label, kind }: { text: string; rest: number; label: string; kind: string }) {
  return (
    <div class={`cut-${kind}`}>
      <Block of={text} label={label} />
      {rest > 0 && <p class="quiet">… and {counted(rest, 'more character', 'more characters')}</p>}
    </div>
  );
}
