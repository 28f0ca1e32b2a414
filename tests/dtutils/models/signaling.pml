/* The accounting of a shared send queue (dtutils/signaling.h), for spin.
 *
 * LANES threads post OPERATIONS each on a queue of DEPTH slots. A thread that finds the queue full polls; a
 * further process polls at any time. The device completes operations in order, one at a time, at any time. That
 * covers more than signaling_interleavings_test.cc, where the device executes an operation only when its
 * completion is polled. But the code here is a copy of the protocol instead of the real one.
 *
 * Checked at each change of the variables concerned:
 *   - the queue never contains more operations than it has slots,
 *   - no buffer is reported free that the device still uses,
 *   - no more credits are retired than operations are complete.
 * Checked at the end: every execution ends with all operations posted (a state without successor in which a
 * lane has not ended is an error).
 *
 * Each of these macros makes a deliberate mistake, which spin must find:
 *   TAG_BEFORE_POST  NUMBER_AFTER_POST  FREE_AT_NUMBER  LAST_UNSIGNALED  CREDITS_BY_STORE  SUM_OVER_LANES
 */
#ifndef LANES
#define LANES 2
#endif
#ifndef DEPTH
#define DEPTH 2
#endif
#ifndef OPERATIONS
#define OPERATIONS 3
#endif
#ifndef BATCH
#define BATCH 1 /* number of credits that a lane takes at once */
#endif
#define TOTAL (LANES * OPERATIONS)

/* Shared variables of the protocol. */
byte granted, retired, epoch, flushed;
#ifdef SUM_OVER_LANES
byte counted[LANES]; /* number of operations that each lane has posted */
#endif

/* The device: operations in the order of posting. */
byte posted;    /* number of operations posted */
byte executed;  /* number of operations that the device has executed */
byte polled;    /* operations below this position are covered by a polled completion */
bit signaled[TOTAL];
byte number[TOTAL];  /* the flush number that its completion publishes */
byte covers[TOTAL];  /* the number of credits that its completion retires */
bit tagged[TOTAL];
byte tag[TOTAL];     /* the tag of its buffer */
bool ready;          /* a completion can be polled: see look_for_completion() */

#ifdef FREE_AT_NUMBER
#define IS_FREE(i) (tag[i] <= flushed)
#else
#define IS_FREE(i) (tag[i] < flushed)
#endif

/* Sets `ready`: the device has executed a signaled operation whose completion was not polled yet. Requires:
   called within an atomic step, wherever that condition may change. */
inline look_for_completion(i) {
  i = polled;
  do
  :: i < executed && !signaled[i] -> i++
  :: else -> break
  od;
  ready = (i < executed)
}

/* The invariants. Checked wherever the protocol's variables have changed. */
inline check(i) {
  assert(retired <= polled);
  assert(granted <= retired + DEPTH);
  i = executed;
  do
  :: i < posted ->
    assert(!tagged[i] || !IS_FREE(i));
    i++
  :: else -> break
  od;
  i = 0
}

/* Takes one completion, if there is one, and retires it. */
inline progress(next, seen) {
  atomic {
    look_for_completion(next);
    if
    :: ready ->
      polled = next + 1;
      look_for_completion(seen);
      seen = 0
    :: else -> next = TOTAL
    fi
  }
  if
  :: next == TOTAL
  :: else ->
    seen = flushed;
    do
    :: seen >= number[next] -> break
    :: else ->
      atomic {
        if
        :: flushed == seen -> flushed = number[next]; check(seen); seen = number[next]
        :: else -> seen = flushed
        fi
      }
    od;
#ifdef SUM_OVER_LANES
    atomic {
      if
      :: retired < covers[next] -> retired = covers[next]
      :: else
      fi;
      check(seen)
    }
#else
    atomic { retired = retired + covers[next]; check(seen) }
#endif
  fi;
  atomic { next = 0; seen = 0 }
}

proctype Device() {
  byte i;
end:
  do
  :: atomic { executed < posted -> executed++; look_for_completion(i); i = 0 }
  od
}

proctype Poller() {
  byte next, seen;
end:
  do
  :: ready -> progress(next, seen)
  od
}

proctype Lane(byte me) {
  byte left;       /* operations to be posted */
  byte credits;
  byte uncovered;  /* posted since the last signaled one */
  byte seen, limit, next, place;
  bit sign;
#ifdef TAG_BEFORE_POST
  byte early;
#endif
#ifdef SUM_OVER_LANES
  byte scan;
#endif
  left = OPERATIONS;
  do
  :: left == 0 -> break
  :: else ->
    /* acquire() */
    do
    :: credits > 0 -> break
    :: else ->
      seen = granted;
      limit = retired + DEPTH;
      if
      :: seen >= limit ->
        seen = 0;
        /* Until this holds, a further poll or acquire() would change nothing. */
        ready || granted < retired + DEPTH;
        progress(next, seen)
      :: else ->
        atomic {
          limit = limit - seen;
          if
          :: limit > BATCH -> limit = BATCH
          :: else
          fi
        }
        atomic {
          if
#ifdef CREDITS_BY_STORE
          :: true -> granted = seen + limit; credits = limit
#else
          :: granted == seen -> granted = seen + limit; credits = limit
          :: else
#endif
          fi;
          seen = 0;
          limit = 0
        }
      fi
    od;
    /* post() */
#ifdef TAG_BEFORE_POST
    early = epoch;
#endif
#ifdef LAST_UNSIGNALED
    sign = 0;
#else
    sign = (credits == 1);
#endif
    if
    :: sign ->
#ifndef NUMBER_AFTER_POST
      atomic { epoch++; seen = epoch };
#endif
#ifdef SUM_OVER_LANES
      limit = 1;
      scan = 0;
      do
      :: scan == LANES -> break
      :: else -> limit = limit + counted[scan]; scan++
      od;
      scan = 0
#else
      limit = uncovered + 1
#endif
    :: else
    fi;
    atomic {
      assert(posted - polled < DEPTH); /* the queue does not overflow */
      place = posted;
      number[place] = seen;
      covers[place] = limit;
#ifndef NUMBER_AFTER_POST
      signaled[place] = sign;
#endif
      posted++;
      seen = 0;
      limit = 0
    }
#ifdef NUMBER_AFTER_POST
    if
    :: sign ->
      atomic { epoch++; seen = epoch };
      atomic {
        number[place] = seen;
        signaled[place] = 1;
        look_for_completion(seen);
        seen = 0
      }
    :: else
    fi;
#endif
    /* after_post() and tag() */
    atomic {
      credits--;
      left--;
      if
      :: sign -> uncovered = 0
      :: else -> uncovered++
      fi
#ifdef SUM_OVER_LANES
      ; counted[me]++
#endif
    }
    atomic {
#ifdef TAG_BEFORE_POST
      tag[place] = early;
      early = 0;
#else
      tag[place] = epoch;
#endif
      tagged[place] = 1;
      check(seen);
      place = 0;
      sign = 0
    }
  od
}

init {
  byte i;
  atomic {
    for (i : 0 .. LANES - 1) { run Lane(i) }
    run Device();
    run Poller()
  }
}
