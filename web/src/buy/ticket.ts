// The buyer's ticket: says to the server which buyer this is, for one event and a short time.
//
// A shop mints it with its own key and hands it over behind the # of the address, which no server sees and no log
// keeps; from there it is taken at once. A demo server mints one for whoever asks. It is kept for this origin
// (localStorage) and not for this tab only, since a second tab is the same buyer with the same hold.

import { ask } from '../shared/http';

interface Kept {
  ticket: string;
  buyer: string | null;
}

const item = (event: string) => `leasehold.ticket.${event}`;

function kept(event: string): Kept | null {
  try {
    return JSON.parse(localStorage.getItem(item(event)) ?? 'null') as Kept | null;
  } catch {
    return null;
  }
}

export const ticketOf = (event: string): string | null => kept(event)?.ticket ?? null;

/** Was it minted by this page, and not by a shop? Then it can be minted again. */
export const isOurs = (event: string): boolean => (kept(event)?.buyer ?? null) !== null;

/** Under --demo, and where a server asks for no keys. The buyer stays the same: cap and holds are the buyer's. */
export async function mint(event: string): Promise<void> {
  const buyer = kept(event)?.buyer;
  const body = JSON.stringify(buyer ? { event, buyer } : { event });
  const headers = { 'Content-Type': 'application/json' };
  const said = (await ask('/v1/tickets', { method: 'POST', body, headers }, null)) as Kept;
  localStorage.setItem(item(event), JSON.stringify({ ticket: said.ticket, buyer: said.buyer }));
}

/** Two tabs that open at once are one buyer: the first mints, the second finds. */
export async function needTicket(event: string): Promise<void> {
  const once = async () => {
    if (ticketOf(event) === null) await mint(event);
  };
  // Locks are only given to secure pages; elsewhere two tabs in the same instant are two buyers.
  if (navigator.locks === undefined) await once();
  else await navigator.locks.request(item(event), once);
}

/** Where a payment page sends the buyer when it is done. Nothing in it is secret: ticket and hold are kept here. */
export const returnUrl = (event: string): string => `${location.origin}${location.pathname}#event=${encodeURIComponent(event)}&back=1`;

/** What the address says: `/#event=ID&ticket=…`, or `/#event=ID&back=1`. Only the event stays there. */
export function fromAddress(): { event: string | null; back: boolean } {
  const said = new URLSearchParams(location.hash.slice(1));
  const event = said.get('event');
  const ticket = said.get('ticket');
  if (event !== null && ticket !== null) {
    localStorage.setItem(item(event), JSON.stringify({ ticket, buyer: null }));
  }
  const back = said.get('back') !== null;
  if (event !== null && (ticket !== null || back)) history.replaceState(null, '', `#event=${encodeURIComponent(event)}`);
  return { event, back };
}
