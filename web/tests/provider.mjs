// A payment provider for tests: makes payments with a page of its own, and does what a test says.

import { createHmac } from 'node:crypto';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const secret = 'what the provider and the server know';

export class Provider {
  payments = new Map();
  captures = [];
  cancels = [];
  #calls = 0;

  /** `mode`: authorise or capture. Its references are as long as they may be. */
  static async start(mode = 'authorise') {
    const provider = new Provider();
    provider.mode = mode;
    provider.http = createServer((request, response) => void provider.#answer(request, response));
    await new Promise((done) => provider.http.listen(0, '127.0.0.1', done));
    provider.url = `http://127.0.0.1:${provider.http.address().port}`;
    provider.folder = await mkdtemp(join(tmpdir(), 'leasehold-provider-'));
    const lines = [`provider_url = "${provider.url}"`, `provider_secrets = ["${secret}"]`, `provider_payments = "${mode}"`, 'allow_private_targets = true'];
    provider.config = join(provider.folder, 'server.toml');
    await writeFile(provider.config, `[boxoffice]\n${lines.join('\n')}\n`);
    return provider;
  }

  async stop() {
    this.http.closeAllConnections();
    await new Promise((done) => this.http.close(done));
    await rm(this.folder, { recursive: true, force: true });
  }

  /** The payment that was made last. */
  get last() {
    return [...this.payments.values()].at(-1);
  }

  /** Says what became of a payment, signed, as a callback. */
  async tell(server, payment, outcome, amount = payment.amount) {
    payment.outcome = outcome;
    payment.said = amount;
    const { payment_ref, hold_id, currency, tokens } = payment;
    this.#calls += 1;
    const body = JSON.stringify({ callback_id: `cb_${this.#calls}`, payment_ref, hold_id, outcome, amount, currency, tokens });
    const at = Date.now();
    const v1 = createHmac('sha256', secret).update(`${at}.${body}`).digest('hex');
    const headers = { 'Content-Type': 'application/json', 'Leasehold-Signature': `t=${at},v1=${v1}` };
    const answer = await fetch(`${server.url}/v1/payments/callback`, { method: 'POST', headers, body });
    if (!answer.ok) throw new Error(`callback: ${answer.status} ${await answer.text()}`);
    return answer.json();
  }

  #status({ outcome, said, amount, currency, hold_id, payment_id }) {
    return { outcome, amount: said ?? amount, currency, hold_id, payment_id };
  }

  async #answer(request, response) {
    let body = '';
    for await (const part of request) body += part;
    const say = (status, value) => response.writeHead(status, { 'Content-Type': 'application/json' }).end(JSON.stringify(value));
    const path = request.url;
    if (request.method === 'POST' && path === '/payments') return say(201, this.#make(JSON.parse(body)));
    const [, , ref, act] = path.split('/').map(decodeURIComponent);
    const payment = this.payments.get(ref);
    if (payment === undefined) return say(404, {});
    if (path.startsWith('/page/')) {
      response.writeHead(200, { 'Content-Type': 'text/html' });
      return response.end(`<!doctype html><title>Pay</title><h1>Pay here</h1><a href="${payment.return_url.replaceAll('&', '&amp;')}">Back to the shop</a>`);
    }
    if (act === 'capture') {
      this.captures.push(ref);
      if (payment.refusesCapture) return say(422, { reason: 'the card is closed' });
      payment.outcome = 'captured';
    }
    if (act === 'cancel') {
      this.cancels.push(ref);
      if (payment.outcome !== 'captured') payment.outcome = 'cancelled';
    }
    return say(200, this.#status(payment));
  }

  #make(asked) {
    const same = [...this.payments.values()].find(({ payment_id }) => payment_id === asked.payment_id);
    const payment_ref = same?.payment_ref ?? `fake_${this.payments.size}_`.padEnd(128, 'x');
    if (same === undefined) this.payments.set(payment_ref, { ...asked, payment_ref, outcome: 'pending' });
    return { payment_ref, pay_url: `${this.url}/page/${encodeURIComponent(payment_ref)}`, mode: asked.mode };
  }
}
