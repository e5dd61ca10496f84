// The head of the page: is it live, how busy is the server, what does its engine promise?

import type { View } from './address';
import { promiseNames, type PromiseName, type Status } from './api';
import { Ticking } from '../shared/bits';
import { key } from '../shared/http';
import type { Link, Live } from './live';
import { Tabs } from './tabs';
import { count, rate, span } from '../shared/words';

export const promises: Record<PromiseName, { word: string; means: string }> = {
  durable: { word: 'durable', means: 'what was answered survives a crash' },
  fencing: { word: 'fencing', means: 'every grant has a token higher than all before it' },
  fair: { word: 'fair', means: 'those who wait are served in order of arrival' },
  never_early: { word: 'never early', means: 'no lease ends before its time, whatever the clocks do' },
  outlives_process: { word: 'outlives process', means: 'a lease depends on its time alone, not on who took it' },
};

interface Props {
  live: Live;
  narrow: boolean;
  views: readonly View[];
  view: View;
  onView: (view: View) => void;
  onHelp: () => void;
}

export function Head({ live, narrow, onHelp, ...tabs }: Props) {
  return (
    <header class="head">
      <h1>
        <span class="brand">Leasehold</span> locks
      </h1>
      <State live={live} />
      <div class="head-end">
        {key.get() !== null && live.link !== 'key' && (
          <>
            <span class="roles">{live.status?.role.join(', ')}</span>
            <button type="button" onClick={() => live.forgetKey()}>
              Forget key
            </button>
          </>
        )}
        <button type="button" class="square" onClick={onHelp} aria-label="Help and keyboard shortcuts" title="Help (?)">
          ?
        </button>
      </div>
      {live.link !== 'key' && <Figures status={live.status} narrow={narrow} />}
      {live.link !== 'key' && <Tabs {...tabs} />}
    </header>
  );
}

const words: Record<Link, string> = {
  connecting: 'Connecting',
  live: 'Live',
  reconnecting: 'Reconnecting',
  key: 'Key needed',
};

/** Only the word is announced; how long ago the last news came would be announced for ever. */
function State({ live }: { live: Live }) {
  return (
    <div class={`state state-${live.link}`}>
      <span class="dot" aria-hidden="true" />
      <span role="status" aria-live="polite">
        {words[live.link]}
      </span>
      {live.stale && (
        <span class="since">
          last news <Ticking text={(now) => span(now - live.heardAt, false)} /> ago
        </span>
      )}
    </div>
  );
}

const counted = (n: number | null | undefined) => (n === null || n === undefined ? undefined : count(n));

function Figures({ status, narrow }: { status: Status | null; narrow: boolean }) {
  const rates = status?.rates;
  const figures: [string, string | undefined][] = [
    ['leases', counted(status?.leases)],
    ['waiting', counted(status?.waiters)],
    ['acquired/s', rates && rate(rates.acquire_per_s)],
    ['released/s', rates && rate(rates.release_per_s)],
    ['lapsed/s', rates && rate(rates.lapse_per_s)],
    ['refused/s', rates && rate(rates.refused_per_s)],
  ];
  return (
    <div class="figures">
      <dl class="numbers">
        {figures.map(([name, value]) => (
          <div>
            <dt>{name}</dt>
            <dd>{value ?? '–'}</dd>
          </div>
        ))}
      </dl>
      {status !== null && <Engine status={status} narrow={narrow} />}
    </div>
  );
}

function Engine({ status, narrow }: { status: Status; narrow: boolean }) {
  const name = (
    <span class="engine-name" title={`Leasehold ${status.version}, up for ${span(status.uptime_ms, false)}`}>
      engine <b>{status.engine}</b>
    </span>
  );
  const list = (
    <ul class="promises" aria-label="What the engine promises">
      {promiseNames.map((promise) => (
        <li class={status.promises[promise] ? 'kept' : 'not'} title={meaning(promise, status.promises[promise])}>
          <span aria-hidden="true">{status.promises[promise] ? '✓' : '✗'}</span>
          <span class="hidden">{status.promises[promise] ? 'promises' : 'does not promise'}</span> {promises[promise].word}
        </li>
      ))}
    </ul>
  );
  if (!narrow) {
    return (
      <div class="engine">
        {name}
        {list}
      </div>
    );
  }
  const kept = promiseNames.filter((promise) => status.promises[promise]).length;
  return (
    <details class="engine">
      <summary>
        {name}, {kept} of {promiseNames.length} promises
      </summary>
      {list}
    </details>
  );
}

const meaning = (name: PromiseName, kept: boolean): string =>
  `${kept ? 'Promised' : 'Not promised'}: ${promises[name].means}`;
