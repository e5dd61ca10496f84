// The page as a whole: key, event, figures, the map and what lies beside it.

import { useEffect, useLayoutEffect, useReducer, useState } from 'preact/hooks';
import { Text, Ticking } from '../shared/bits';
import { keepFocus } from '../shared/focus';
import { Gate } from '../shared/gate';
import { key } from '../shared/http';
import { span } from '../shared/words';
import { Glyphs } from '../office/glyphs';
import { Actions } from './actions';
import type { Desk } from './desk';
import { Figures } from './figures';
import { HallView } from './view';
import { Holds } from './holds';
import { Payments } from './payments';
import { Sections } from './sections';
import { SeatPane } from './seatpane';
import { Proof } from './proof';

type Tab = 'hall' | 'holds' | 'sections' | 'payments' | 'proof';
const tabs: [Tab, string][] = [
  ['hall', 'Hall'],
  ['holds', 'Holds'],
  ['sections', 'Sections'],
  ['payments', 'Payments'],
  ['proof', 'Proof'],
];

export function App({ desk }: { desk: Desk }) {
  const [, redraw] = useReducer((n: number) => n + 1, 0);
  const [tab, setTab] = useState<Tab>('hall');
  useEffect(() => desk.onChange(() => redraw(undefined)), [desk]);
  useLayoutEffect(() => keepFocus(document.body, ['#seat-title', '#key', '#main']), []);
  return (
    <div class="page">
      <Glyphs />
      <a class="skip" href="#main" onClick={skip}>
        Skip to the hall
      </a>
      <Head desk={desk} />
      {desk.needKey !== false ? (
        <Gate wrong={desk.needKey} action="Open" onKey={(value) => desk.useKey(value)}>
          A key with the role <b>boxoffice</b> or <b>admin</b> opens this page. An operator makes one with{' '}
          <code>leasehold key create --role boxoffice</code>.
        </Gate>
      ) : (
        <div class={`columns${desk.open !== null ? ' with-seat' : ''}`}>
          <main id="main" tabIndex={-1} class="seats-side">
            {desk.wrong !== null && (
              <p class="banner" role="alert">
                {desk.wrong}
              </p>
            )}
            <div role="status">{desk.note !== '' && <p class="note">{desk.note}</p>}</div>
            {desk.feed !== null && <Figures desk={desk} />}
            {desk.feed === null && desk.events.length === 0 && desk.wrong === null && <p class="quiet">There is no event yet.</p>}
            <div class="ways">
              <div class="tabs" role="group" aria-label="What is shown">
                {tabs.map(([name, words]) => (
                  <button type="button" aria-pressed={tab === name} onClick={() => setTab(name)}>
                    {words}
                  </button>
                ))}
              </div>
              <Actions desk={desk} />
            </div>
            {desk.hall !== null && desk.feed?.seats.begun && (
              <>
                {tab === 'hall' && <HallView desk={desk} hall={desk.hall} feed={desk.feed} />}
                {tab === 'holds' && <Holds desk={desk} hall={desk.hall} feed={desk.feed} />}
                {tab === 'sections' && <Sections desk={desk} hall={desk.hall} feed={desk.feed} />}
                {tab === 'payments' && <Payments desk={desk} />}
                {tab === 'proof' && <Proof desk={desk} />}
              </>
            )}
          </main>
          {desk.open !== null && desk.hall !== null && desk.feed !== null && (
            <aside class="side" aria-label="One seat">
              <SeatPane desk={desk} hall={desk.hall} feed={desk.feed} id={desk.open} />
            </aside>
          )}
        </div>
      )}
    </div>
  );
}

const words = { connecting: 'Connecting', live: 'Live', reconnecting: 'Reconnecting', refused: 'Closed' };

function Head({ desk }: { desk: Desk }) {
  const link = desk.feed?.link ?? 'connecting';
  const { events, settings } = desk;
  return (
    <header class="head">
      <h1>
        <span class="brand">Leasehold</span> box office, staff
      </h1>
      <div class={`state state-${link}`}>
        <span class="dot" aria-hidden="true" />
        <span role="status">{desk.needKey !== false ? 'Key needed' : words[link]}</span>
        {link === 'reconnecting' && desk.feed !== null && (
          <span class="since">
            last news <Ticking text={(now) => span(now - (desk.feed?.heardAt ?? now), false)} /> ago
          </span>
        )}
      </div>
      <div class="head-end">
        {events.length > 1 && settings !== null && (
          <label class="inline">
            Event{' '}
            <select value={settings.event_id} onChange={(event) => void desk.choose(event.currentTarget.value)}>
              {events.map((one) => (
                <option value={one.event_id}>{one.name}</option>
              ))}
            </select>
          </label>
        )}
        {events.length === 1 && settings !== null && <Text of={settings.name} />}
        {key.get() !== null && (
          <button type="button" onClick={() => desk.forgetKey()}>
            Forget key
          </button>
        )}
      </div>
    </header>
  );
}

function skip(event: Event): void {
  event.preventDefault();
  document.getElementById('main')?.focus();
}
