// The page for buyers: pick seats, hold them, pay.
//
// Reading order: marks (pure) · ticket, vault (what this browser keeps) · basket (the hold) · shop (one event) · app
// and the views. What the hall is and how seats stand is in office/, which the page for staff shares.

import { render } from 'preact';
import { App } from './app';
import './buy.css';

const page = document.getElementById('page');
if (page !== null) render(<App />, page);
