/* Fatal signals: the process leaves its record, if it still can, and dies of the signal all the same. */
#include "virtual_gpu.h"

#include <signal.h>
#include <unistd.h>

#define PATIENCE 30 /* seconds in which a broken process may write its record */

static const int fatal_signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
static void (*on_fatal)(int);

static void fatal(int number) {
  void (*call)(int) = __sync_lock_test_and_set(&on_fatal, NULL);
  signal(number, SIG_DFL);
  signal(SIGALRM, SIG_DFL);
  alarm(PATIENCE);
  if (call) call(number);
  raise(number);
}

/* Where the program has a handler of its own, that one stays. */
EXPORT void virtual_gpu_on_fatal(void (*callback)(int)) {
  on_fatal = callback;
  for (size_t i = 0; i < sizeof fatal_signals / sizeof *fatal_signals; i++) {
    struct sigaction now;
    if (sigaction(fatal_signals[i], NULL, &now) == 0 && now.sa_handler == SIG_DFL) {
      struct sigaction ours = {.sa_handler = fatal, .sa_flags = SA_NODEFER};
      sigaction(fatal_signals[i], &ours, NULL);
    }
  }
}
