// The page /locks: what is held, by whom, who waits; elections, schedules and queues.
//
// Reading order: words, clock, order (pure) · api, sse (the server) · listing, live (what is known) · app, leases and
// the views. Views only show what `Live` knows; strangers' text reaches the page through `Text` and `Block` alone.
// recipes/ is the same once more for the other tabs: describe, body (pure) · api · recipes (what is known) · view.

import { render } from 'preact';
import { App } from './app';
import { Live } from './live';
import { Recipes } from './recipes/recipes';
import './locks.css';

const live = new Live();
const recipes = new Recipes(live);
const page = document.getElementById('page');
if (page !== null) render(<App live={live} recipes={recipes} />, page);
recipes.start();
live.start();
