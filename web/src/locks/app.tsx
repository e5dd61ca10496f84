// The page as a whole: its tabs, what is common to them, and what the address remembers.

import { useEffect, useLayoutEffect, useReducer, useState } from 'preact/hooks';
import { fromAddress, kinds, toAddress, type View } from './address';
import { useMedia } from '../shared/bits';
import { Gate } from '../shared/gate';
import { Head } from './head';
import { Help } from './help';
import { keepFocus } from '../shared/focus';
import { Leases } from './leases';
import { electionPrefix, type Live } from './live';
import type { Recipes } from './recipes/recipes';
import { RecipeView } from './recipes/view';

const lettersItem = 'leasehold.letters';
/** Where the focus goes when what had it is gone, the nearest first. */
const refuges = ['#detail-title', '#key', '#list', '.opener', '#main'];

export function App({ live, recipes }: { live: Live; recipes: Recipes }) {
  const [, redraw] = useReducer((n: number) => n + 1, 0);
  useLayoutEffect(() => live.onChange(() => redraw(undefined)), [live]);
  useLayoutEffect(() => recipes.onChange(() => redraw(undefined)), [recipes]);

  useLayoutEffect(() => keepFocus(document.body, refuges), []);

  const narrow = useMedia('(max-width: 719px)');
  const single = useMedia('(max-width: 1079px)');
  // Read once: the tab writes the address before the page as a whole could read it.
  const [begin] = useState(() => fromAddress(location.hash));
  const [view, setView] = useState<View>(begin.view);
  const [query, setQuery] = useState(begin.query);
  const [help, setHelp] = useState(false);
  const [letters, setLetters] = useState(() => localStorage.getItem(lettersItem) !== 'off');
  const openName = openOf(live);
  const openRecipe = openRecipeOf(recipes);

  // Before the paint: what is seen has its address, so a reload at any moment comes back to it.
  useLayoutEffect(() => {
    const { resource, recipe } = begin;
    if (resource !== null && resource !== '') live.open(resource);
    if (view !== 'leases') recipes.show(view);
    if (view !== 'leases' && recipe !== null) recipes.open(view, recipe);
  }, [live, recipes]);
  const writeAddress = () => {
    // Asked anew: what is open may be newer than this rendering.
    const hash = toAddress({ view, query, resource: openOf(live), recipe: openRecipeOf(recipes) });
    history.replaceState(null, '', hash === '' ? location.pathname : `#${hash}`);
  };
  useLayoutEffect(writeAddress, [view, query, openName, openRecipe]);

  useEffect(() => live.show(view === 'leases'), [live, view]);

  const views: View[] = ['leases', ...kinds.filter((kind) => recipes.boards[kind].there === true || kind === view)];
  const show = (to: View) => {
    if (to === view) return;
    // What is open belongs to its tab. Left open, it would take the focus from whoever passes by with the arrows.
    live.close();
    setView(to);
    recipes.show(to === 'leases' ? null : to);
  };
  const saveLetters = (on: boolean) => {
    setLetters(on);
    localStorage.setItem(lettersItem, on ? 'on' : 'off');
  };
  const keys = {
    letters,
    enabled: live.link !== 'key',
    onHelp: () => setHelp(true),
    onTab: (place: number) => {
      const to = views[place - 1];
      if (to !== undefined) show(to);
    },
  };

  return (
    <div class={`page${live.stale ? ' is-stale' : ''}`}>
      <a class="skip" href="#main" onClick={skip}>
        Skip to the list
      </a>
      <Head live={live} narrow={narrow} onHelp={() => setHelp(true)} views={views} view={view} onView={show} />
      {live.link === 'key' ? (
        <Gate wrong={live.error} action="Show locks" onKey={(key) => live.useKey(key)}>
          A key with the role <b>read</b> shows what is held; with <b>admin</b> it can also revoke. An operator makes
          one with <code>leasehold key create --role read</code>.
        </Gate>
      ) : view === 'leases' ? (
        <Leases
          live={live}
          keys={keys}
          narrow={narrow}
          single={single}
          query={query}
          onQuery={setQuery}
          onOpened={writeAddress}
        />
      ) : (
        <RecipeView
          key={view}
          kind={view}
          live={live}
          recipes={recipes}
          keys={keys}
          single={single}
          onLease={(name) => {
            show('leases');
            live.open(electionPrefix + name);
          }}
        />
      )}
      {help && <Help letters={letters} onLetters={saveLetters} onClose={() => setHelp(false)} />}
    </div>
  );
}

const openOf = (live: Live): string | null => live.detail?.name ?? null;
const openRecipeOf = (recipes: Recipes): string | null => recipes.runs?.name ?? recipes.dead?.name ?? null;

function skip(event: Event): void {
  event.preventDefault();
  const first = document.getElementById('list') ?? document.querySelector<HTMLElement>('.opener');
  (first ?? document.getElementById('main'))?.focus();
}
