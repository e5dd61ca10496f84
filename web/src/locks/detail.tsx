// One resource: everybody who holds it, everybody who waits, in order.

import { useState } from 'preact/hooks';
import type { Resource } from './api';
import { Text, Ticking } from '../shared/bits';
import { stamp } from '../shared/clock';
import type { Detail, Live } from './live';
import { PaneHead } from './pane';
import { Mode } from './row';
import { ago, count, counted, exact, span } from '../shared/words';

interface Props {
  live: Live;
  detail: Detail;
  /** What the last revoke did. */
  note: string | null;
  onRevoke: () => void;
  onClose: () => void;
}

export function DetailPane({ live, detail, note, onRevoke, onClose }: Props) {
  const { resource } = detail;
  return (
    <section class={`detail${live.stale ? ' stale' : ''}`} aria-labelledby="detail-title">
      <PaneHead name={detail.name} note={note} error={detail.error} onClose={onClose} />
      {resource === null ? (
        <p class="quiet">{detail.loading ? 'Asking the server…' : 'Nobody holds it, and nobody waits for it.'}</p>
      ) : (
        <>
          <Facts resource={resource} />
          <Holders resource={resource} stale={live.stale} />
          <Waiters resource={resource} />
        </>
      )}
      {live.mayRevoke && resource !== null && resource.holdersTotal > 0 && (
        <div class="actions">
          <button type="button" class="danger" onClick={onRevoke} aria-disabled={live.stale}>
            Revoke…
          </button>
        </div>
      )}
    </section>
  );
}

function Facts({ resource }: { resource: Resource }) {
  return (
    <p class="facts">
      <Mode of={resource} /> · {counted(resource.holdersTotal, 'holder')} ·{' '}
      {resource.queueLen === 0 ? 'nobody waits' : `${count(resource.queueLen)} waiting`}
    </p>
  );
}

/** A page of holders or of the queue: the server lists up to a thousand, and each ticks. */
const shownAtFirst = 100;

function Holders({ resource, stale }: { resource: Resource; stale: boolean }) {
  const [shown, setShown] = useState(shownAtFirst);
  if (resource.holdersTotal === 0) return <p class="quiet">Nobody holds it. The first in line is next.</p>;
  const further = Math.max(0, resource.holders.length - shown);
  const unlisted = resource.holdersTotal - resource.holders.length;
  return (
    <>
      <h3>Held by</h3>
      <ul class="people">
        {resource.holders.slice(0, shown).map((held) => (
          <li key={`${held.token}/${held.holder}`}>
            <div class="person">
              <Text of={held.holder} titled={false} />
            </div>
            <dl class="facts-of">
              <div>
                <dt>token</dt>
                <dd>{held.token ?? 'none: this engine cannot fence'}</dd>
              </div>
              <div>
                <dt>since</dt>
                <dd>
                  <Ticking text={(now) => ago(now - held.since)} />
                  <Exact of={held.since} sign={-1} />
                </dd>
              </div>
              <div>
                <dt>remaining</dt>
                <dd>
                  <Ticking text={(now) => remaining(held.ends, now, stale)} />
                  {held.ends !== null && <Exact of={held.ends} sign={1} />}
                </dd>
              </div>
            </dl>
          </li>
        ))}
      </ul>
      {further > 0 && (
        <button type="button" onClick={() => setShown(shown + shownAtFirst)}>
          Show {count(Math.min(further, shownAtFirst))} more holders
        </button>
      )}
      {further + unlisted > 0 && <p class="quiet">and {count(further + unlisted)} more hold it</p>}
    </>
  );
}

/** Always in sight here: a tooltip would leave out those who have no mouse. */
function Exact({ of, sign }: { of: number; sign: 1 | -1 }) {
  return (
    <>
      <span class="exact">
        {' · '}
        <Ticking text={(now) => exact(sign * (of - now))} />
      </span>
      <span class="exact line" title="By this computer's clock">
        {sign === 1 ? 'ends' : 'since'} {stamp(of).slice(0, 19)}
      </span>
    </>
  );
}

export function remaining(ends: number | null, now: number, stale: boolean): string {
  if (ends === null) return '…';
  if (ends > now) return span(ends - now);
  return stale ? 'not known' : 'ending';
}

function Waiters({ resource }: { resource: Resource }) {
  const [shown, setShown] = useState(shownAtFirst);
  if (resource.queueLen === 0) return null;
  const listed = resource.waiters.slice(0, shown);
  const further = resource.waiters.length - listed.length;
  const unlisted = resource.queueLen - resource.waiters.length;
  return (
    <>
      <h3>Waiting, in order</h3>
      <ol class="queue">
        {listed.map((waiter, place) => (
          <li key={`${place}/${waiter.holder}`}>
            <Text of={waiter.holder} />
            <span class="when">
              <Ticking
                text={(now) => span(now - waiter.since, false)}
                exact={(now) => `waiting for ${exact(now - waiter.since)}, since ${stamp(waiter.since)}`}
              />
            </span>
          </li>
        ))}
      </ol>
      {further > 0 && (
        <button type="button" onClick={() => setShown(shown + shownAtFirst)}>
          Show {count(Math.min(further, shownAtFirst))} more
        </button>
      )}
      {further === 0 && unlisted > 0 && <p class="quiet">and {count(unlisted)} more behind them</p>}
    </>
  );
}
