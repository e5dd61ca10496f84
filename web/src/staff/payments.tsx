// Money that came after its time, that is too much or owed, and money that neither came nor was refused.

import { useState } from 'preact/hooks';
import type { Order } from '../office/api';
import type { Desk, Fields } from './desk';
import { Records } from './fields';
import { captureOf, moneyState, sourceOf, uncaptured } from './moneywords';
import { Reason } from './reason';

const first = ['hold_id', 'buyer', 'payment_ref', 'seats', 'state', 'resolution', 'total', 'amount', 'age_ms'];

const ofOrder = ['order_id', 'buyer', 'payment_ref', 'seats', 'total', 'capture', 'said by'];

type Asking = { refund: string; how: 'refund' | 'close' } | null;

export function Payments({ desk }: { desk: Desk }) {
  const [asking, setAsking] = useState<Asking>(null);
  const currency = desk.settings?.currency ?? '';
  const { report } = desk;
  if (report === null) return <p class="quiet">Asking the server…</p>;
  const late = report.late_payments ?? [];
  const stuck = report.stuck_payments ?? [];
  const orders = (Array.isArray(report.orders) ? report.orders : []).filter(uncaptured);
  // The server's word for a state decides what can be done; what is shown is in plain words.
  const states = new Map(late.map((record) => [record['refund_id'], record['state']]));
  const acts = ({ refund_id: refund, payment_ref: payment }: Fields) => {
    const state = states.get(refund);
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
        <Records records={late.map(shown)} first={first} currency={currency} label="Late and owed payments" acts={acts} />
      )}
      <h2>Stuck payments</h2>
      {stuck.length === 0 ? <p class="quiet">None.</p> : <Records records={stuck} first={first} currency={currency} label="Stuck payments" />}
      <h2>Sold and not captured</h2>
      {orders.length === 0 ? (
        <p class="quiet">None.</p>
      ) : (
        <>
          <p>
            The seats are sold, and the money is authorised. The provider is asked for it until it answers. Where it refuses: take
            the money in another way, or void the order.
          </p>
          <Records records={orders.map((order) => shownOrder(order, currency))} first={ofOrder} currency={currency} label="Sold and not captured" />
        </>
      )}
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

function shown(record: Fields): Fields {
  const steps = Array.isArray(record['steps']) ? (record['steps'] as { state: string; note: string }[]) : [];
  return { ...record, state: moneyState(record['state']), steps: steps.map(({ state, note }) => ({ state: moneyState(state), note })) };
}

function shownOrder({ order_id, buyer, payment_ref, seats, areas, total, capture, source }: Order, currency: string): Fields {
  return {
    order_id,
    buyer,
    payment_ref,
    seats: [...seats, ...(areas ?? [])],
    total,
    capture: capture ? captureOf(capture, currency) : null,
    'said by': source ? sourceOf(source) : null,
  };
}
