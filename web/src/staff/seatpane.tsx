// One seat: how it stands, who has it, and everything that ever happened to it ("why did I lose C12?").

import { useLayoutEffect, useRef, useState } from 'preact/hooks';
import { Text } from '../shared/bits';
import { span } from '../shared/words';
import type { Feed } from '../office/feed';
import type { Order } from '../office/api';
import type { Hall } from '../office/hall';
import { place, staffWords } from '../office/labels';
import { price } from '../office/money';
import type { Desk, Fields } from './desk';
import { title, Value } from './fields';
import { captureOf, kindOf, sourceOf } from './moneywords';
import { OrderActs } from './orderacts';
import { Reason } from './reason';

export function SeatPane({ desk, hall, feed, id }: { desk: Desk; hall: Hall; feed: Feed; id: string }) {
  const heading = useRef<HTMLHeadingElement>(null);
  const [asking, setAsking] = useState(false);
  useLayoutEffect(() => heading.current?.focus(), [id]);
  const seat = hall.seats.get(id);
  if (seat === undefined) return null;
  const state = feed.seats.state(id);
  const line = feed.seats.line(id);
  const currency = desk.settings?.currency ?? '';
  const facts: [string, string | undefined][] = [
    ['price', price(seat.price, currency)],
    ['holder', line?.buyer],
    ['hold', line?.hold_id],
    ['age', line?.age_ms === undefined ? undefined : span(line.age_ms, false)],
    ['renewals', line?.renewals === undefined ? undefined : String(line.renewals)],
    ['left', line?.remaining_ms === undefined ? undefined : span(line.remaining_ms, false)],
    ['order', line?.order_id],
    ...paidFor(state === 'sold' ? desk.order : null, currency),
    ['reason', line?.reason],
  ];
  const close = () => {
    desk.show(null);
    // Back to the seat in the map, if it is there.
    document.querySelector<HTMLElement>(`[data-seat="${CSS.escape(id)}"]`)?.focus();
  };
  return (
    <section aria-labelledby="seat-title">
      <div class="detail-head">
        <h2 id="seat-title" ref={heading} tabIndex={-1}>
          {place(seat)}: {staffWords[state]}
        </h2>
        <button type="button" class="square" aria-label="Close" onClick={close}>
          ×
        </button>
      </div>
      <dl class="facts-of">
        {facts.map(
          ([name, value]) =>
            value !== undefined && (
              <div>
                <dt>{name}</dt>
                <dd>
                  <Text of={value} />
                </dd>
              </div>
            ),
        )}
      </dl>
      {(state === 'held' || state === 'paying') && (
        <div class="actions">
          <button type="button" class="danger" onClick={() => setAsking(true)}>
            Release…
          </button>
        </div>
      )}
      {state === 'sold' && line?.order_id !== undefined && <OrderActs desk={desk} hall={hall} feed={feed} order={line.order_id} id={id} />}
      <h3>What happened to it</h3>
      <History entries={desk.history} currency={currency} />
      {asking && (
        <Reason
          title={`Release ${place(seat)}`}
          says="The whole hold ends, on all its seats, at once. The buyer sees it and cannot pay any more."
          action="Release now"
          onClose={() => setAsking(false)}
          onDo={(reason) => desk.release(id, reason)}
        />
      )}
    </section>
  );
}

/** How the seat's order was paid, who said so, and whether the money is taken. */
function paidFor(order: Order | null, currency: string): [string, string | undefined][] {
  if (order === null) return [];
  return [
    ['paid', order.paid === undefined ? undefined : price(order.paid, currency)],
    ['said by', order.source ? sourceOf(order.source) : order.sold_for === 0 ? 'nobody: it cost nothing' : undefined],
    ['capture', order.capture ? captureOf(order.capture, currency) : undefined],
  ];
}

/** What stands in the first line, or is the same in every entry. */
const said = ['kind', 'at', 'reason', 'event_id'];

function History({ entries, currency }: { entries: Fields[] | null; currency: string }) {
  if (entries === null) return <p class="quiet">Asking the server…</p>;
  if (entries.length === 0) return <p class="quiet">Nothing yet.</p>;
  return (
    <ol class="history">
      {entries.map((entry) => (
        <li key={String(entry['seq'])}>
          <p>
            <b>{kindOf(String(entry['kind'] ?? 'event'))}</b>{' '}
            <span class="quiet">{String(entry['at'] ?? '').replace('T', ' ')}</span>
          </p>
          {typeof entry['reason'] === 'string' && entry['reason'] !== '' && (
            <p class="why">
              <Text of={entry['reason']} />
            </p>
          )}
          <dl class="facts-of">
            {Object.keys(entry)
              .filter((name) => !said.includes(name) && !empty(entry[name]))
              .map((name) => (
                <div>
                  <dt>{title(name)}</dt>
                  <dd>
                    <Value name={name} of={entry[name]} currency={currency} />
                  </dd>
                </div>
              ))}
          </dl>
        </li>
      ))}
    </ol>
  );
}

const empty = (value: unknown): boolean => value === null || value === '' || (Array.isArray(value) && value.length === 0);
