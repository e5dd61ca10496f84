// Paying. A demo server brings a test provider, which can be told how it shall behave.

import type { Held } from './held';
import type { Shop } from './shop';

const outcomes: [name: string, words: string, means: string][] = [
  ['approve', 'Approve', 'pays at once'],
  ['decline', 'Decline', 'refuses the card; the seats stay held'],
  ['slow', 'Slow', 'pays after some seconds'],
  ['duplicate', 'Twice', 'tells of the same payment twice'],
  ['out_of_order', 'Out of order', 'pays at the second try, and tells of the first one last'],
  ['late', 'Too late', 'pays when the time is over'],
  ['short', 'Too little', 'pays half of it, which then goes back'],
];

export function Paying({ shop, held }: { shop: Shop; held: Held }) {
  const { busy } = shop.basket;
  if (!shop.office.demo) {
    return (
      <p>
        Please finish the payment with your payment provider{held.paymentRef !== null && <> (reference {held.paymentRef})</>}. This
        page notices by itself.
      </p>
    );
  }
  return (
    <section class="provider" aria-labelledby="provider-title">
      <h3 id="provider-title">Pay with the test provider</h3>
      <p class="quiet">No money moves. What shall the provider do?</p>
      <ul>
        {outcomes.map(([name, words, means]) => (
          <li>
            <button
              type="button"
              class={name === 'approve' ? 'primary' : ''}
              aria-disabled={busy !== null}
              aria-describedby={`means-${name}`}
              onClick={() => void shop.basket.demoPay(name)}
            >
              {words}
            </button>{' '}
            <span id={`means-${name}`} class="quiet">
              {means}
            </span>
          </li>
        ))}
      </ul>
    </section>
  );
}
