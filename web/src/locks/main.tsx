// The page /locks: what is held, by whom, who waits.
//
// Reading order: words, clock, order (pure) · api, sse (the server) · listing, live (what is known) · app and the
// views. Views only show what `Live` knows; strangers' text reaches the page through `Text` alone.

import { render } from 'preact';
import { App } from './app';
import { Live } from './live';
import './locks.css';

const live = new Live();
const page = document.getElementById('page');
if (page !== null) render(<App live={live} />, page);
live.start();
