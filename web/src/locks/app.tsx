// The page as a whole: its parts, the keyboard, and what the address remembers (#q=search&r=resource).

import { useEffect, useLayoutEffect, useMemo, useReducer, useRef, useState } from 'preact/hooks';
import type { Resource } from './api';
import { Ticking, useMedia } from './bits';
import { stamp } from './clock';
import { DetailPane } from './detail';
import { Empty } from './empty';
import { Gate } from './gate';
import { Head } from './head';
import { Help } from './help';
import { keepFocus } from './focus';
import { useKeys } from './keys';
import { List, type ListHandle } from './list';
import type { Live } from './live';
import { Recent } from './recent';
import { Revoke } from './revoke';
import { shown as rowsFor } from './shown';
import { exact } from './words';

const lettersItem = 'leasehold.letters';
const typingPause = 250;

export function App({ live }: { live: Live }) {
  const [, redraw] = useReducer((n: number) => n + 1, 0);
  useEffect(() => live.onChange(() => redraw(undefined)), [live]);

  useLayoutEffect(() => keepFocus(document.body), []);

  const narrow = useMedia('(max-width: 719px)');
  const single = useMedia('(max-width: 1079px)');
  const [tab, setTab] = useState<'held' | 'recent'>('held');
  const [query, setQuery] = useState(() => fromAddress().q);
  const [help, setHelp] = useState(false);
  const [revoking, setRevoking] = useState<string | null>(null);
  const [note, setNote] = useState<string | null>(null);
  const [letters, setLetters] = useState(() => localStorage.getItem(lettersItem) !== 'off');
  const [active, setActive] = useState<Resource | undefined>();
  const list = useRef<ListHandle>(null);
  const search = useRef<HTMLInputElement>(null);
  const openName = live.detail?.name ?? null;

  useEffect(() => {
    const { r } = fromAddress();
    if (r !== '') live.open(r);
  }, [live]);
  useEffect(() => toAddress(query, openName), [query, openName]);
  // Whoever closes a resource is back in the list.
  const wasOpen = useRef(false);
  useLayoutEffect(() => {
    if (wasOpen.current && openName === null) list.current?.focus();
    wasOpen.current = openName !== null;
  }, [openName]);
  useEffect(() => {
    const timer = window.setTimeout(() => live.search(query), query === '' ? 0 : typingPause);
    return () => window.clearTimeout(timer);
  }, [query, live.all.complete, live.all]);

  const shown = useMemo(() => rowsFor(live, query), [live.version, query]);

  const open = (name: string) => {
    setNote(null);
    live.open(name);
  };
  const close = () => {
    live.close();
    setNote(null);
  };
  const askRevoke = (name: string | undefined) => {
    if (live.mayRevoke && !live.stale && name !== undefined) setRevoking(name);
  };
  const saveLetters = (on: boolean) => {
    setLetters(on);
    localStorage.setItem(lettersItem, on ? 'on' : 'off');
  };
  useKeys({
    letters,
    enabled: live.link !== 'key' && !help && revoking === null,
    list,
    search,
    onOpen: () => {
      const row = list.current?.active();
      if (row !== undefined) open(row.name);
    },
    onEscape: () => (openName === null ? setQuery('') : close()),
    onRevoke: () => askRevoke(openName ?? list.current?.active()?.name),
    onHelp: () => setHelp(true),
  });

  const empty = live.all.complete && live.all.rows.length === 0 && query === '';
  const covered = single && live.detail !== null;
  return (
    <div class={`page${live.stale ? ' is-stale' : ''}`}>
      <a class="skip" href="#main" onClick={skip}>
        Skip to the list
      </a>
      <Head live={live} narrow={narrow} onHelp={() => setHelp(true)} />
      {live.link === 'key' ? (
        <Gate live={live} />
      ) : (
        <div class={`columns tab-${tab}`}>
          <main id="main" class="main" tabIndex={-1} inert={covered}>
            <div class="bar">
              <input
                ref={search}
                type="search"
                class="search"
                placeholder="Search resources, holders, tokens"
                aria-label="Search resources, holders and tokens"
                aria-keyshortcuts={letters ? '/' : undefined}
                spellcheck={false}
                autoComplete="off"
                value={query}
                onInput={(event) => setQuery(event.currentTarget.value)}
              />
              <div class="tabs" role="group" aria-label="What is shown">
                <button type="button" aria-pressed={tab === 'held'} onClick={() => setTab('held')}>
                  Held
                </button>
                <button type="button" aria-pressed={tab === 'recent'} onClick={() => setTab('recent')}>
                  Recent
                </button>
              </div>
            </div>
            <Banner live={live} />
            {single && tab === 'recent' ? (
              <Recent live={live} onOpen={open} />
            ) : empty ? (
              <Empty live={live} />
            ) : (
              <>
                <List
                  live={live}
                  shown={shown}
                  narrow={narrow}
                  openName={openName}
                  onOpen={open}
                  handle={list}
                  onActive={setActive}
                />
                {query !== '' && shown.rows.length === 0 && live.all.begun && (
                  <p class="nothing">Nothing that is held matches. What is free is not listed.</p>
                )}
                <div class="foot">
                  <span class="summary">{shown.summary}</span>
                  {active !== undefined && <ExactLine row={shown.rows.find((row) => row.name === active.name)} />}
                </div>
              </>
            )}
          </main>
          {live.detail !== null && (
            <aside class="side" aria-label="One resource">
              <DetailPane
                live={live}
                detail={live.detail}
                note={note}
                onRevoke={() => askRevoke(live.detail?.name)}
                onClose={close}
              />
            </aside>
          )}
          {live.detail === null && !single && (
            <aside class="side" aria-label="Endings">
              <Recent live={live} onOpen={open} />
            </aside>
          )}
        </div>
      )}
      {help && <Help letters={letters} onLetters={saveLetters} onClose={() => setHelp(false)} />}
      {revoking !== null && (
        <Revoke
          live={live}
          name={revoking}
          resource={known(live, revoking)}
          onClose={() => setRevoking(null)}
          onDone={(message) => {
            live.open(revoking);
            setNote(message);
            setRevoking(null);
          }}
        />
      )}
    </div>
  );
}

function Banner({ live }: { live: Live }) {
  if (live.stale) {
    return (
      <p class="banner">The connection is lost. This is what was held when the last news came; it may have changed.</p>
    );
  }
  if (live.error !== null) return <p class="banner">{live.error}</p>;
  return null;
}

/** The exact figures of the marked row, for those who move by keyboard and have nothing to hover with. */
function ExactLine({ row }: { row: Resource | undefined }) {
  const held = row?.holders[0];
  if (held === undefined) return null;
  const ends = held.ends;
  return (
    <span class="exact-line">
      <Ticking
        text={(now) =>
          `since ${stamp(held.since).slice(11)}` +
          (ends === null ? '' : ` · ends ${stamp(ends).slice(11, 19)} · ${exact(ends - now)} left`)
        }
      />
    </span>
  );
}

function known(live: Live, name: string): Resource | null {
  if (live.detail?.name === name) return live.detail.resource;
  return live.all.get(name) ?? live.hits?.get(name) ?? null;
}

function skip(event: Event): void {
  event.preventDefault();
  (document.getElementById('list') ?? document.getElementById('main'))?.focus();
}

function fromAddress(): { q: string; r: string } {
  const said = new URLSearchParams(location.hash.slice(1));
  return { q: said.get('q') ?? '', r: said.get('r') ?? '' };
}

/** What follows # is not sent to the server: a link to what one sees, and nothing in its logs. */
function toAddress(query: string, name: string | null): void {
  const say = new URLSearchParams();
  if (query !== '') say.set('q', query);
  if (name !== null) say.set('r', name);
  const hash = say.toString();
  history.replaceState(null, '', hash === '' ? location.pathname : `#${hash}`);
}
