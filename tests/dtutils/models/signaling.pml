/* The accounting of a shared send queue (dtutils/signaling.h), for spin.
 *
 * LANES threads post OPERATIONS each on a queue of DEPTH slots. Whoever finds it full polls; a further
 * process polls at any time. The device completes operations in order, one at a time, at any time. That is more
 * than signaling_interleavings_test.cc has (there the device is done only when it must be), but the code
 * is a copy of the protocol instead of the real one.
 *
 * Checked wherever it can change: no more operations are in the queue than it has slots, no buffer is
 * called free that the device still uses, no more credits come back than operations are complete; and
 * every execution ends with all operations posted (a state without successor in which a lane has not
 * ended is an error).
 *
 * One of these makes a deliberate mistake, which spin must find:
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
#define BATCH 1 /* credits taken at once */
#endif
#define TOTAL (LANES * OPERATIONS)

/* Shared variables of the protocol. */
byte granted, retired, epoch, flushed;
#ifdef SUM_OVER_LANES
byte counted[LANES]; /* operations, by their lanes */
#endif

/* The device: operations in the order of posting. */
byte posted;    /* how many were posted */
byte executed;  /* how many the device is done with */
byte polled;    /* completions were taken for the operations below it */
bit signaled[TOTAL];
byte number[TOTAL];  /* the flush number that its completion publishes */
byte covers[TOTAL];  /* the credits that it brings back */
bit tagged[TOTAL];
byte tag[TOTAL];     /* of its buffer */
bool ready;          /* see look_for_completion() */

#ifdef FREE_AT_NUMBER
#define IS_FREE(i) (tag[i] <= flushed)
#else
#define IS_FREE(i) (tag[i] < flushed)
#endif

/* Sets `ready`: whether the device has executed a signaled operation that nobody has polled. To be used
   wherever that may change, within an atomic step. */
inline look_for_completion(i) {
  i = polled;
  do
  :: i < executed && !signaled[i] -> i++
  :: else -> break
  od;
  ready = (i < executed)
}

/* What must hold wherever the protocol's variables have changed. */
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
        /* Looking again changes nothing before this. */
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
