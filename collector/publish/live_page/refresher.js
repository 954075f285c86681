// When something is asked for again.

const PATIENCE = 10; // what is asked for keeps the collector busy for a tenth of the time at the most

/** Runs `work` when it is asked to, one at a time, and not more often than is good for either side: it waits at least
 * `leastMs()`, and ten times as long as the last answer took. Who asks meanwhile is remembered. */
export class Refresher {
  constructor(leastMs, work) {
    Object.assign(this, { leastMs, work, readyAt: 0, isBusy: false, isWanted: false, timer: undefined });
  }

  ask() {
    this.isWanted = true;
    clearTimeout(this.timer);
    if (!this.isBusy) this.timer = setTimeout(() => this.run(), Math.max(0, this.readyAt - performance.now()));
  }

  askAtOnce() {
    this.readyAt = 0;
    this.ask();
  }

  /** Do not, until somebody asks again. */
  rest() {
    this.isWanted = false;
    clearTimeout(this.timer);
  }

  async run() {
    const begin = performance.now();
    [this.isBusy, this.isWanted] = [true, false];
    try {
      await this.work();
    } finally {
      const lasted = performance.now() - begin;
      this.readyAt = performance.now() + Math.max(this.leastMs(), PATIENCE * lasted);
      this.isBusy = false;
      if (this.isWanted) this.ask();
    }
  }
}
