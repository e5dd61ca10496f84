// The basket: what is picked, what is held and for how long, what was bought, what went wrong.

import { Text } from '../shared/bits';
import { counted } from '../shared/words';
import { idOf, type MoneyState } from '../office/api';
import { list, place, places, why } from '../office/labels';
import { price } from '../office/money';
import { Countdown } from './countdown';
import { Paying } from './paying';
import type { Shop } from './shop';

export function BasketPane({ shop }: { shop: Shop }) {
  const { basket } = shop;
  const { held, order } = basket;
  const title = held !== null ? (held.state === 'paying' && !held.paid ? 'Pay for your seats' : 'Held for you') : order !== null ? 'Bought' : 'Your seats';
  return (
    <>
      <h2 id="basket-title" tabIndex={-1}>
        {title}
      </h2>
      <div role="status" class="note-place">
        {basket.note !== '' && <p class="note">{basket.note}</p>}
        {shop.gone !== null && <p class="note warned">{shop.gone}</p>}
      </div>
      <Trouble shop={shop} />
      {basket.money.length > 0 && (
        <details class="steps">
          <summary>What became of your money</summary>
          {basket.money.map(({ amount, state, steps }) => (
            <>
              <p>
                {price(amount, shop.currency)}: {moneyWords[state] ?? String(state).replaceAll('_', ' ')}
              </p>
              <ol>
                {steps?.map(({ state, note }) => (
                  <li>
                    <Text of={note || state.replaceAll('_', ' ')} />
                  </li>
                ))}
              </ol>
            </>
          ))}
        </details>
      )}
      {held !== null && <Countdown key={held.hold_id} basket={basket} held={held} />}
      {held !== null && <Things shop={shop} seats={held.seats} areas={held.areas} total={held.total} />}
      {held === null && order !== null && <Bought shop={shop} />}
      {held?.paid ? <Offered shop={shop} /> : held?.state === 'paying' ? <Paying shop={shop} held={held} /> : <Picking shop={shop} />}
    </>
  );
}

/** Where money is, for whoever paid it. */
const moneyWords: Record<MoneyState, string> = {
  received: 'came, and nothing is decided yet',
  sold: 'bought your seats',
  offered: 'other seats are held for it',
  refund_due: 'goes back to you',
  refunded: 'went back to you',
  stuck: 'our staff sees to it',
  closed: 'our staff settled it',
  cancel_due: 'is being cancelled, no money was taken',
  cancelled: 'cancelled, no money was taken',
};

function Things({ shop, seats, areas, total }: { shop: Shop; seats: string[]; areas: { id: string; qty: number }[]; total: number }) {
  return (
    <>
      <ul class="things">
        {seats.map((id) => {
          const seat = shop.hall?.seats.get(id);
          return (
            <li key={id}>
              <span>
                {seat === undefined ? <Text of={id} /> : place(seat)}
                {seat !== undefined && (shop.hall?.sections.length ?? 0) > 1 && <span class="quiet"> · {seat.section}</span>}
              </span>
              <span>{seat !== undefined && price(seat.price, shop.currency)}</span>
            </li>
          );
        })}
        {areas.map(({ id, qty }) => (
          <li key={id}>
            <span>
              {counted(qty, 'place')}, <Text of={shop.areas.find((area) => area.id === id)?.name ?? id} />
            </span>
            <span>{price(qty * (shop.areas.find((area) => area.id === id)?.price ?? 0), shop.currency)}</span>
          </li>
        ))}
      </ul>
      <p class="total">
        <span>Total</span> <span>{price(total, shop.currency)}</span>
      </p>
    </>
  );
}

/** Seats for money that came too late: there is nothing to pay any more, only a yes or a no. */
function Offered({ shop }: { shop: Shop }) {
  const { basket } = shop;
  return (
    <div class="actions">
      <button type="button" class="primary large" aria-disabled={basket.busy !== null} onClick={() => void basket.accept()}>
        Take these seats
      </button>
      <button type="button" aria-disabled={basket.busy !== null} onClick={() => void basket.release()}>
        No, my money back
      </button>
    </div>
  );
}

function Picking({ shop }: { shop: Shop }) {
  const { basket, picked, leaving, places: areas } = shop;
  const { held, busy } = basket;
  const changes = picked.size + leaving.size + areas.size;
  if (changes === 0 && held === null) {
    return basket.order === null ? <p class="quiet">Pick seats, or ask for the best ones. They are held for you while you pay.</p> : null;
  }
  const people = picked.size + [...areas.values()].reduce((sum, qty) => sum + qty, 0);
  const act = [people > 0 && `${held === null ? 'hold' : 'add'} ${counted(people, 'seat')}`, leaving.size > 0 && `give back ${counted(leaving.size, 'seat')}`];
  const words = list(act.filter((word) => word !== false));
  return (
    <>
      {changes > 0 && (
        <div class="change">
          {picked.size > 0 && shop.hall !== null && <p>Picked: {places(shop.hall, [...picked])}</p>}
          {[...areas].map(([id, qty]) => (
            <p>
              Picked: {counted(qty, 'place')}, <Text of={shop.areas.find((area) => area.id === id)?.name ?? id} />
            </p>
          ))}
          {leaving.size > 0 && shop.hall !== null && <p>To give back: {places(shop.hall, [...leaving])}</p>}
          {people > 0 && (
            <p class="total">
              <span>{held === null ? 'Total' : 'More'}</span> <span>{price(shop.cost, shop.currency)}</span>
            </p>
          )}
          <div class="actions">
            <button type="button" class="primary large" aria-disabled={busy !== null} onClick={() => void shop.take()}>
              {busy === 'hold' || busy === 'change' ? 'Asking…' : `${words.charAt(0).toUpperCase()}${words.slice(1)}`}
            </button>
            <button type="button" onClick={() => shop.clear()}>
              Clear
            </button>
          </div>
        </div>
      )}
      {held !== null && changes === 0 && (
        <div class="actions">
          <button type="button" class="primary large" aria-disabled={busy !== null} onClick={() => void basket.pay()}>
            {busy === 'pay' ? 'Asking…' : `Pay ${price(held.total, shop.currency)}`}
          </button>
          <button type="button" aria-disabled={busy !== null} onClick={() => void basket.release()}>
            Give back all
          </button>
        </div>
      )}
    </>
  );
}

/** What was refused, what failed, and what nobody knows. */
function Trouble({ shop }: { shop: Shop }) {
  const { basket } = shop;
  const { refusal, unknown, wrong } = basket;
  if (unknown !== null) {
    return (
      <div class="trouble" role="alert">
        <p>
          <b>Not known:</b> the server does not answer, so nobody here knows whether it {unknownWords[unknown.kind]}. Asking again
          does no harm: it is done once.
        </p>
        <button type="button" onClick={() => basket.tryAgain()}>
          Ask again
        </button>
      </div>
    );
  }
  if (refusal !== null && shop.hall !== null) {
    const { alternative } = refusal;
    return (
      <div class="trouble" role="alert">
        <p>
          <b>{refusal.kept ? 'Nothing was changed.' : 'Nothing was held.'}</b>
        </p>
        <ul>
          {refusal.conflicts.map(({ seat, area, reason }) => (
            <li>{`${named(shop, seat, area)} ${why(reason)}`.trim()}</li>
          ))}
        </ul>
        {alternative !== null && alternative.seats.length > 0 && (
          <>
            <p>
              Free instead: {places(shop.hall, alternative.seats.map(idOf))}
              {alternative.total !== undefined && `, ${price(alternative.total, shop.currency)}`}
            </p>
            <button type="button" class="primary" onClick={() => void instead(shop, alternative.seats.map(idOf))}>
              Hold these instead
            </button>
          </>
        )}{' '}
        <button type="button" onClick={() => basket.dismiss()}>
          Close
        </button>
      </div>
    );
  }
  if (wrong === null) return null;
  return (
    <div class="trouble" role="alert">
      <p>{wrong}</p>
      <button type="button" onClick={() => basket.dismiss()}>
        Close
      </button>
    </div>
  );
}

const unknownWords = {
  hold: 'holds your seats',
  change: 'changed your seats',
  renew: 'renewed your hold',
  release: 'has taken your seats back',
  pay: 'has begun the payment',
  cancel: 'has cancelled the payment',
  confirm: 'has sold you the seats',
  demo: 'has the payment',
};

function named(shop: Shop, seat: string | undefined, area: string | undefined): string {
  if (seat !== undefined && shop.hall !== null) return places(shop.hall, [seat]);
  if (area !== undefined) return shop.areas.find(({ id }) => id === area)?.name ?? area;
  return '';
}

async function instead(shop: Shop, seats: string[]): Promise<void> {
  const done = shop.basket.held === null ? shop.basket.hold({ seats }) : shop.basket.change(seats, []);
  if (await done) shop.clear();
}

function Bought({ shop }: { shop: Shop }) {
  const { order } = shop.basket;
  if (order === null) return null;
  return (
    <>
      {order.order_id !== null && (
        <p>
          Order <Text of={order.order_id} />
        </p>
      )}
      <Things shop={shop} seats={order.seats} areas={order.areas} total={order.total} />
      <div class="actions">
        <button type="button" onClick={() => shop.basket.forgetOrder()}>
          Buy more
        </button>
      </div>
    </>
  );
}
