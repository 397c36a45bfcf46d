package reput.accelerator;

/** What a broker has sent is nothing that this code handles: Python reads it. */
final class NotPlain extends Exception {
  NotPlain(String reason) {
    super(reason);
  }
}
