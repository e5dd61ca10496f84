// The page for staff: the live hall, who holds what, and what an operator can do about it.
//
// Reading order: desk (what is known and what can be done) · app and the views.

import { render } from 'preact';
import { App } from './app';
import { Desk } from './desk';
import './staff.css';

const desk = new Desk();
const page = document.getElementById('page');
if (page !== null) render(<App desk={desk} />, page);
void desk.start();
