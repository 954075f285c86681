// Rate-limited refreshes.

const PATIENCE = 10; // requests keep the collector busy for at most a tenth of the time

/** Run `work` on request, one at a time. Between two runs it waits at least `leastMs()`, and ten times as long as the
 * last one took; requests meanwhile are merged into one. */
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

  /** Cancel a pending run. */
  cancel() {
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
