// One of the tabs beside leases: its list, and beside it the schedule or the queue that is open.

import { useLayoutEffect, useRef, useState } from 'preact/hooks';
import { Confirm, type Question } from './confirm';
import { Elections } from './elections';
import { QueuePane } from './queue';
import { Queues } from './queues';
import type { Recipes } from './recipes';
import { Runs } from './runs';
import { Schedules } from './schedules';
import type { Kind } from '../address';
import { Copyable } from '../../shared/bits';
import { useKeys, type Moves } from '../keys';
import type { PageKeys } from '../leases';
import type { Live } from '../live';
import { Panel } from '../tabs';

interface Props {
  kind: Kind;
  live: Live;
  recipes: Recipes;
  keys: PageKeys;
  single: boolean;
  /** To the lease of an election. */
  onLease: (election: string) => void;
}

export function RecipeView({ kind, live, recipes, keys, single, onLease }: Props) {
  const main = useRef<HTMLElement>(null);
  const moves = useRef<Moves>(movesAmong(main));
  const [question, setQuestion] = useState<Question | null>(null);
  const { runs, dead, boards } = recipes;
  const openName = runs?.name ?? dead?.name ?? null;

  // Whoever closes a schedule or a queue is back on its line.
  const lastOpen = useRef<string | null>(null);
  useLayoutEffect(() => {
    if (openName === null && lastOpen.current !== null) openerOf(main.current, lastOpen.current)?.focus();
    // The list has less room beside what is open: its line must not leave the view by that.
    if (openName !== null) openerOf(main.current, openName)?.scrollIntoView({ block: 'nearest' });
    lastOpen.current = openName;
  }, [openName]);

  useKeys({
    ...keys,
    list: moves,
    onEscape: () => recipes.close(),
  });

  const open = (name: string) => {
    if (openName !== name) recipes.open(kind, name);
  };
  const shared = { live, old: recipes.old(kind), openName, onOpen: open };
  return (
    <div class={`columns recipes${openName === null ? ' whole' : ''}`}>
      <main id="main" class="main" tabIndex={-1} ref={main} inert={single && openName !== null}>
        <Panel view={kind}>
          <Banner live={live} error={boards[kind].rows === null ? null : boards[kind].error} />
          {boards[kind].rows === null ? (
            <Waiting error={boards[kind].error} />
          ) : boards[kind].rows.length === 0 ? (
            <Nothing kind={kind} />
          ) : kind === 'elections' ? (
            <Elections {...shared} rows={boards.elections.rows ?? []} onOpen={onLease} />
          ) : kind === 'schedules' ? (
            <Schedules {...shared} rows={boards.schedules.rows ?? []} />
          ) : (
            <Queues {...shared} rows={boards.queues.rows ?? []} />
          )}
        </Panel>
      </main>
      {runs !== null && (
        <aside class="side" aria-label="One schedule">
          <Runs
            pane={runs}
            schedule={boards.schedules.rows?.find(({ name }) => name === runs.name)}
            old={shared.old}
            onClose={() => recipes.close()}
          />
        </aside>
      )}
      {dead !== null && (
        <aside class="side" aria-label="One queue">
          <QueuePane
            key={dead.name}
            pane={dead}
            queue={boards.queues.rows?.find(({ name }) => name === dead.name)}
            old={shared.old}
            mayAct={live.mayRevoke}
            note={recipes.note}
            onAsk={setQuestion}
            onClose={() => recipes.close()}
          />
        </aside>
      )}
      {question !== null && (
        <Confirm
          recipes={recipes}
          question={question}
          onClose={() => setQuestion(null)}
          onDone={(note) => {
            setQuestion(null);
            recipes.say(note);
          }}
        />
      )}
    </div>
  );
}

function Banner({ live, error }: { live: Live; error: string | null }) {
  const said = live.stale ? 'The connection is lost. This is what the last news said; it may have changed.' : error;
  return said === null ? null : <p class="banner">{said}</p>;
}

function Waiting({ error }: { error: string | null }) {
  return (
    <div class="empty">
      <p class={error === null ? 'quiet' : ''} role={error === null ? undefined : 'alert'}>
        {error ?? 'Asking the server…'}
      </p>
    </div>
  );
}

const nothing: Record<Kind, { title: string; says: string; command: string }> = {
  elections: {
    title: 'Nobody leads',
    says: 'On every machine: one runs the command, the others stand in line.',
    command: 'leasehold elect scheduler -- ./scheduler',
  },
  schedules: {
    title: 'There is no schedule yet',
    says: 'On every machine: one of them runs the command at each tick.',
    command: 'leasehold cron nightly --schedule "0 3 * * *" -- ./nightly',
  },
  queues: {
    title: 'There is no queue yet',
    says: 'A first push makes it. Workers take jobs with leasehold queue work.',
    command: `leasehold queue push mail '{"to": "ada"}'`,
  },
};

function Nothing({ kind }: { kind: Kind }) {
  const { title, says, command } = nothing[kind];
  return (
    <div class="empty">
      <h2>{title}</h2>
      <p>{says}</p>
      <Copyable label="leasehold" text={command} />
    </div>
  );
}

function openersIn(main: HTMLElement | null): HTMLElement[] {
  return [...(main?.querySelectorAll<HTMLElement>('.opener') ?? [])];
}

const openerOf = (main: HTMLElement | null, name: string): HTMLElement | undefined =>
  openersIn(main).find((opener) => opener.dataset['name'] === name);

/** Keys move the focus from line to line: each has one button that opens it. */
function movesAmong(main: { current: HTMLElement | null }): Moves {
  const go = (index: (at: number, all: number) => number) => {
    const openers = openersIn(main.current);
    const at = openers.findIndex((opener) => opener === document.activeElement);
    const to = Math.max(0, Math.min(openers.length - 1, index(at, openers.length)));
    openers[to]?.focus();
  };
  const jumps = { first: () => 0, last: (_: number, all: number) => all - 1, down: (at: number) => at + 5, up: (at: number) => at - 5 };
  return {
    move: (by) => go((at) => (at < 0 ? 0 : at + by)),
    jump: (where) => go(jumps[where]),
    // `move` and `jump` have put it there.
    focus: () => {},
  };
}
