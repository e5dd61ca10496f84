// The tab of leases: the list, the search, one resource or the recent endings beside it.

import { useEffect, useLayoutEffect, useMemo, useRef, useState } from 'preact/hooks';
import type { Resource } from './api';
import { Ticking } from '../shared/bits';
import { stamp } from '../shared/clock';
import { DetailPane } from './detail';
import { Empty } from './empty';
import { useKeys } from './keys';
import { List, type ListHandle } from './list';
import type { Live } from './live';
import { Recent } from './recent';
import { Revoke } from './revoke';
import { shown as rowsFor } from './shown';
import { Panel } from './tabs';
import { exact } from '../shared/words';

const typingPause = 250;

/** What every tab is given: how the keyboard is used, and what of it belongs to the page as a whole. */
export interface PageKeys {
  letters: boolean;
  /** False while a key is asked for. */
  enabled: boolean;
  onHelp: () => void;
  onTab: (place: number) => void;
}

interface Props {
  live: Live;
  keys: PageKeys;
  narrow: boolean;
  single: boolean;
  query: string;
  onQuery: (query: string) => void;
  /** A resource is shown, or no more. The tab shows it before the page as a whole is rendered again. */
  onOpened: () => void;
}

export function Leases({ live, keys, narrow, single, query, onQuery, onOpened }: Props) {
  const [tab, setTab] = useState<'held' | 'recent'>('held');
  const [revoking, setRevoking] = useState<string | null>(null);
  const [note, setNote] = useState<string | null>(null);
  const [active, setActive] = useState<Resource | undefined>();
  const list = useRef<ListHandle>(null);
  const search = useRef<HTMLInputElement>(null);
  const openName = live.detail?.name ?? null;

  // Whoever closes a resource is back in the list.
  const wasOpen = useRef(false);
  useLayoutEffect(() => {
    if (wasOpen.current && openName === null) list.current?.focus();
    wasOpen.current = openName !== null;
    onOpened();
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
  useKeys({
    ...keys,
    list,
    search,
    onOpen: () => {
      const row = list.current?.active();
      if (row !== undefined) open(row.name);
    },
    onEscape: () => (openName === null ? onQuery('') : close()),
    onRevoke: () => askRevoke(openName ?? list.current?.active()?.name),
  });

  const empty = live.all.complete && live.all.rows.length === 0 && query === '';
  const covered = single && live.detail !== null;
  return (
    <div class={`columns tab-${tab}`}>
      <main id="main" class="main" tabIndex={-1} inert={covered}>
        <Panel view="leases">
          <div class="bar">
            <input
              ref={search}
              type="search"
              class="search"
              placeholder="Search resources, holders, tokens"
              aria-label="Search resources, holders and tokens"
              aria-keyshortcuts={keys.letters ? '/' : undefined}
              spellcheck={false}
              autoComplete="off"
              value={query}
              onInput={(event) => onQuery(event.currentTarget.value)}
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
        </Panel>
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
