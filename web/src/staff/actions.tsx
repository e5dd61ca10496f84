// What can be done to many seats at once, and to the sale as a whole.

import { useState } from 'preact/hooks';
import { counted } from '../shared/words';
import type { Desk } from './desk';
import { Reason } from './reason';

type Asking = 'block' | 'unblock' | 'freeze' | 'unfreeze' | null;

export function Actions({ desk }: { desk: Desk }) {
  const [asking, setAsking] = useState<Asking>(null);
  const { settings, marked, feed } = desk;
  if (settings === null || feed === null) return null;
  const frozen = settings.frozen;
  const free = [...marked].filter((id) => feed.seats.state(id) === 'free').length;
  const blocked = [...marked].filter((id) => feed.seats.state(id) === 'blocked').length;
  const close = () => setAsking(null);
  return (
    <div class="doings">
      <span class="quiet" role="status">
        {marked.size === 0 ? '' : `${counted(marked.size, 'seat')} marked`}
      </span>
      {marked.size > 0 && (
        <>
          <button type="button" aria-disabled={free === 0} onClick={() => free > 0 && setAsking('block')}>
            Block {free}…
          </button>
          <button type="button" aria-disabled={blocked === 0} onClick={() => blocked > 0 && setAsking('unblock')}>
            Unblock {blocked}…
          </button>
          <button type="button" onClick={() => desk.mark([...marked], false)}>
            Clear marks
          </button>
        </>
      )}
      <button type="button" class={frozen ? '' : 'danger'} onClick={() => setAsking(frozen ? 'unfreeze' : 'freeze')}>
        {frozen ? 'Go on selling…' : 'Stop sales…'}
      </button>
      <button type="button" onClick={() => void download(desk, 'report')}>
        Orders as CSV
      </button>
      <button type="button" onClick={() => void download(desk, 'audit')}>
        Everything as CSV
      </button>
      {asking === 'block' && (
        <Reason
          title={`Block ${counted(free, 'seat')}`}
          says="Blocked seats cannot be held or sold until somebody unblocks them. Of the marked seats, those that are free are blocked."
          action="Block"
          onClose={close}
          onDo={(reason) => desk.block(reason)}
        />
      )}
      {asking === 'unblock' && (
        <Reason
          title={`Unblock ${counted(blocked, 'seat')}`}
          says="They are for sale again at once."
          action="Unblock"
          onClose={close}
          onDo={(reason) => desk.unblock(reason)}
        />
      )}
      {(asking === 'freeze' || asking === 'unfreeze') && (
        <Reason
          title={asking === 'freeze' ? 'Stop sales' : 'Go on selling'}
          says={asking === 'freeze' ? 'No new seats are held until sales go on. What is held or paid stays as it is.' : 'Buyers can hold seats again at once.'}
          action={asking === 'freeze' ? 'Stop' : 'Go on'}
          onClose={close}
          onDo={(reason) => desk.freeze(asking === 'freeze', reason)}
        />
      )}
    </div>
  );
}

/** Asked with the key in a header, so not by a plain link; handed to the browser as a file. */
async function download(desk: Desk, of: 'report' | 'audit'): Promise<void> {
  const text = await desk.csv(of);
  if (text === null) return;
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob([text], { type: 'text/csv' }));
  link.download = `${desk.settings?.event_id ?? 'event'}-${of === 'report' ? 'orders' : 'audit'}.csv`;
  link.click();
  window.setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
