// The page as a whole: which event, is it live, how to look at it.

import { useEffect, useLayoutEffect, useReducer, useState } from 'preact/hooks';
import { Text, Ticking, useMedia } from '../shared/bits';
import { keepFocus } from '../shared/focus';
import { Problem } from '../shared/http';
import { span } from '../shared/words';
import { Api, office as askOffice, type EventLine } from '../office/api';
import { Glyphs } from '../office/glyphs';
import { BasketPane } from './pane';
import { Seating } from './seating';
import { Shop } from './shop';
import { fromAddress } from './ticket';

type Stage = { at: 'asking' } | { at: 'none' } | { at: 'closed' } | { at: 'events'; events: EventLine[] } | { at: 'shop'; shop: Shop };

export function App() {
  const [stage, setStage] = useState<Stage>({ at: 'asking' });
  const [wrong, setWrong] = useState<string | null>(null);
  useLayoutEffect(() => keepFocus(document.body, ['#basket-title', '#main']), []);
  useEffect(() => {
    let over = false;
    const begin = async () => {
      try {
        const next = await choose();
        if (over) return;
        setWrong(null);
        setStage(next);
      } catch {
        if (over) return;
        setWrong('The box office does not answer. Trying again.');
        window.setTimeout(() => void begin(), 3000);
      }
    };
    void begin();
    const elsewhere = () => location.reload();
    window.addEventListener('hashchange', elsewhere);
    return () => {
      over = true;
      window.removeEventListener('hashchange', elsewhere);
    };
  }, []);
  if (stage.at === 'shop') return <Sale shop={stage.shop} />;
  return (
    <div class="page">
      <header class="head">
        <h1>
          <span class="brand">Leasehold</span> box office
        </h1>
      </header>
      <main id="main" tabIndex={-1} class="plain">
        {wrong !== null && (
          <p class="wrong" role="alert">
            {wrong}
          </p>
        )}
        {stage.at === 'none' && <p>This server sells no seats.</p>}
        {stage.at === 'closed' && <p>Please come in through the shop that sells the seats: its link brings your ticket.</p>}
        {stage.at === 'events' && <Events events={stage.events} />}
        {stage.at !== 'asking' && (
          <p class="quiet others">
            For operators: <a href="/locks">what is held</a>, <a href="/admin">the box office</a>, <a href="/docs">the API</a>.
          </p>
        )}
      </main>
    </div>
  );
}

async function choose(): Promise<Stage> {
  const said = fromAddress();
  const office = await askOffice();
  if (office === null) return { at: 'none' };
  const event = said.event ?? office.default_event;
  if (event === null) return events();
  const shop = new Shop(office, event, said.back);
  void shop.start();
  return { at: 'shop', shop };
}

/** Nothing is on sale here by itself: what there is, if everybody may see it. */
async function events(): Promise<Stage> {
  try {
    return { at: 'events', events: await new Api(() => null).events() };
  } catch (error) {
    if (error instanceof Problem && error.status < 500) return { at: error.status === 401 || error.status === 403 ? 'closed' : 'none' };
    throw error;
  }
}

function Events({ events }: { events: EventLine[] }) {
  if (events.length === 0) return <p>Nothing is on sale.</p>;
  return (
    <>
      <h2>On sale</h2>
      <ul class="events">
        {events.map((event) => (
          <li>
            <a href={`#event=${encodeURIComponent(event.event_id)}`}>
              <Text of={event.name} />
            </a>
          </li>
        ))}
      </ul>
    </>
  );
}

function Sale({ shop }: { shop: Shop }) {
  const [, redraw] = useReducer((n: number) => n + 1, 0);
  const narrow = useMedia('(max-width: 819px)');
  useEffect(() => shop.onChange(() => redraw(undefined)), [shop]);
  useEffect(() => {
    if (shop.settings !== null) document.title = `${shop.settings.name} · Box office`;
  }, [shop.settings]);
  const { settings, feed } = shop;
  return (
    <div class="page">
      <Glyphs />
      <a class="skip" href="#main" onClick={skip}>
        Skip to the seats
      </a>
      <header class="head">
        <h1>{settings === null ? 'Box office' : <Text of={settings.name} />}</h1>
        <div class={`state state-${feed.link}`}>
          <span class="dot" aria-hidden="true" />
          <span role="status">{words[feed.link]}</span>
          {feed.link === 'reconnecting' && (
            <span class="since">
              last news <Ticking text={(now) => span(now - feed.heardAt, false)} /> ago
            </span>
          )}
        </div>
      </header>
      <div class="columns">
        <main id="main" tabIndex={-1} class="seats-side">
          {shop.failed !== null && (
            <p class="banner" role="alert">
              {shop.failed}
            </p>
          )}
          {feed.link === 'reconnecting' && (
            <p class="banner">The connection is lost. Seats are shown as they were at the last news; your hold runs on.</p>
          )}
          {settings !== null && !shop.selling && <p class="banner">{settings.frozen ? 'Sales are stopped for the moment.' : 'Not on sale yet.'}</p>}
          {shop.hall !== null && feed.seats.begun && <Seating shop={shop} hall={shop.hall} narrow={narrow} />}
          {shop.failed === null && !(shop.hall !== null && feed.seats.begun) && <p class="quiet">Opening the hall…</p>}
        </main>
        <aside class="basket" aria-labelledby="basket-title">
          <div>
            <BasketPane shop={shop} />
          </div>
        </aside>
      </div>
    </div>
  );
}

const words = { connecting: 'Connecting', live: 'Live', reconnecting: 'Reconnecting', refused: 'Closed' };

function skip(event: Event): void {
  event.preventDefault();
  document.getElementById('main')?.focus();
}
