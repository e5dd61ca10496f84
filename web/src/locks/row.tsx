// One resource in the list: its first holder, and how many more there are.

import type { Resource } from './api';
import { Text, Ticking } from '../shared/bits';
import { stamp } from '../shared/clock';
import { remaining } from './detail';
import { ago, count, exact } from '../shared/words';

export const columns = ['Resource', 'Mode', 'Holder', 'Token', 'Since', 'Remaining', 'Waiting, in order'] as const;

export function Mode({ of }: { of: Resource }) {
  if (of.mode === null) return <span class="none">…</span>;
  if (of.mode !== 'permits') return <span class={`mode mode-${of.mode}`}>{of.mode}</span>;
  const used = of.used === null ? '' : `${count(of.used)} of ${of.capacity === null ? '?' : count(of.capacity)} `;
  return <span class="mode mode-permits">{used}permits</span>;
}

interface Props {
  row: Resource;
  index: number;
  top: number;
  active: boolean;
  open: boolean;
  stale: boolean;
  onPick: (row: Resource, index: number) => void;
}

export function Row({ row, index, top, active, open, stale, onPick }: Props) {
  const first = row.holders[0];
  return (
    <div
      role="row"
      id={`row-${index}`}
      class={`row${active ? ' active' : ''}${open ? ' open' : ''}`}
      aria-rowindex={index + 2}
      aria-selected={open}
      style={{ transform: `translateY(${top}px)` }}
      onClick={() => onPick(row, index)}
    >
      <div role="gridcell" class="cell name">
        <Text of={row.name} />
      </div>
      <div role="gridcell" class="cell mode-cell">
        <Mode of={row} />
      </div>
      <div role="gridcell" class="cell holder">
        {first === undefined ? <span class="none">{row.holdersTotal === 0 ? 'nobody' : '…'}</span> : <Text of={first.holder} />}
        {row.holdersTotal > 1 && <span class="more">+{count(row.holdersTotal - 1)}</span>}
      </div>
      <div role="gridcell" class="cell token">
        {first === undefined ? '' : (first.token ?? <span class="none">none</span>)}
      </div>
      <div role="gridcell" class="cell since">
        {first !== undefined && (
          <Ticking
            text={(now) => ago(now - first.since)}
            exact={(now) => `held for ${exact(now - first.since)}, since ${stamp(first.since)} by this computer's clock`}
          />
        )}
      </div>
      <div role="gridcell" class="cell remaining">
        {first !== undefined && (
          <Ticking
            text={(now) => remaining(first.ends, now, stale)}
            exact={(now) => (first.ends === null ? '' : `${exact(first.ends - now)}, ends ${stamp(first.ends)} by this computer's clock`)}
          />
        )}
      </div>
      <div role="gridcell" class="cell waiters">
        {row.queueLen > 0 && <Queue row={row} />}
      </div>
    </div>
  );
}

/** As many as may fit; the cell clips what does not. */
const named = 4;

function Queue({ row }: { row: Resource }) {
  return (
    <>
      <span class="queue-len">
        {count(row.queueLen)}
        <span class="hidden"> waiting:</span>
      </span>
      <span class="queue-names">
        {row.waiters.slice(0, named).map((waiter, place) => (
          <>
            {place > 0 && <span aria-hidden="true"> → </span>}
            <Text of={waiter.holder} />
            {place > 0 && <span class="hidden">, </span>}
          </>
        ))}
        {row.queueLen > Math.min(named, row.waiters.length) && ' → …'}
      </span>
    </>
  );
}
