// Paying: at the provider's own page, or with the test provider of a demo server, which can be told how it shall behave.

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
  ['authorise', 'Authorise', 'reserves the money; it is taken after the sale'],
  ['capture_fails', 'Authorise, then refuse', 'reserves the money, and refuses to hand it over after the sale'],
];

export function Paying({ shop, held }: { shop: Shop; held: Held }) {
  const { basket, office } = shop;
  const page = held.payUrl !== null && /^https?:\/\//i.test(held.payUrl) ? held.payUrl : null;
  return (
    <>
      {office.demo ? <TestProvider shop={shop} page={page} /> : <p>{page === null ? elsewhere : there}</p>}
      <div class="actions">
        {!office.demo && page !== null && (
          <a class="button primary large" href={page} rel="noreferrer">
            Go to the payment page
          </a>
        )}
        <button type="button" aria-disabled={basket.busy !== null} onClick={() => void basket.cancelPayment()}>
          {basket.busy === 'cancel' ? 'Cancelling…' : 'Cancel the payment and go back'}
        </button>
      </div>
      {held.paymentRef !== null && (
        <p class="quiet reference">
          Reference <bdi>{held.paymentRef}</bdi>
        </p>
      )}
    </>
  );
}

const there = 'You pay on the page of the payment provider, and come back here.';
const elsewhere = 'Please finish the payment with your payment provider. This page notices by itself.';

function TestProvider({ shop, page }: { shop: Shop; page: string | null }) {
  const { busy } = shop.basket;
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
      {page !== null && (
        <p>
          Or go to <a href={page} rel="noreferrer">its payment page</a>, which only this computer can open.
        </p>
      )}
    </section>
  );
}
