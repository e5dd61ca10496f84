// Money that came after its time, that is too much or owed, and money that neither came nor was refused.

import { useState } from 'preact/hooks';
import type { Desk, Fields } from './desk';
import { Records } from './fields';
import { Reason } from './reason';

const first = ['hold_id', 'buyer', 'payment_ref', 'seats', 'state', 'resolution', 'total', 'amount', 'age_ms'];

type Asking = { refund: string; how: 'refund' | 'close' } | null;

export function Payments({ desk }: { desk: Desk }) {
  const [asking, setAsking] = useState<Asking>(null);
  const currency = desk.settings?.currency ?? '';
  const { report } = desk;
  if (report === null) return <p class="quiet">Asking the server…</p>;
  const late = report.late_payments ?? [];
  const stuck = report.stuck_payments ?? [];
  const acts = ({ refund_id: refund, state, payment_ref: payment }: Fields) => {
    if (typeof refund !== 'string' || (state !== 'stuck' && state !== 'refund_due')) return '–';
    const act = (how: 'refund' | 'close', words: string) => (
      <button type="button" aria-label={`${words} ${String(payment)}`} onClick={() => setAsking({ refund, how })}>
        {words}…
      </button>
    );
    return (
      <>
        {state === 'stuck' && act('refund', 'Give back')} {act('close', 'Settled by hand')}
      </>
    );
  };
  return (
    <>
      <h2>Late and owed payments</h2>
      {late.length === 0 ? (
        <p class="quiet">None.</p>
      ) : (
        <Records records={late} first={first} currency={currency} label="Late and owed payments" acts={acts} />
      )}
      <h2>Stuck payments</h2>
      {stuck.length === 0 ? <p class="quiet">None.</p> : <Records records={stuck} first={first} currency={currency} label="Stuck payments" />}
      {asking !== null && (
        <Reason
          title={asking.how === 'refund' ? 'Give it back' : 'Settled by hand'}
          says={
            asking.how === 'refund'
              ? 'The payment provider is asked to give it back to whoever paid.'
              : 'Nothing more happens to this money here: whoever it belongs to has it, or it stays where it is.'
          }
          action={asking.how === 'refund' ? 'Give back' : 'It is settled'}
          onClose={() => setAsking(null)}
          onDo={(reason) => desk.settle(asking.refund, asking.how, reason)}
        />
      )}
    </>
  );
}
