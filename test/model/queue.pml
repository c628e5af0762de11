/*
 * The protocol of the tensor queue (src/queue/states.ts) for spin: 2 producers (ingress processes), consumers (instances), a supervisor, and deaths at any
 * step of anybody but the supervisor. Being stopped at any step is what interleaving means.
 *
 * A transition makes at most one change that others can see, as the code does. Reads are transitions of their own unless the change that follows
 * checks them again (a compareExchange), or what is read only ever moves one way. Names are those of the code. Left out: tensors (a row is one number,
 * the tag of its request), blocks (a slab has its memory), shape keys, the wrap-around of a slab word's 20 bits. A claim word holds one bit of the
 * generation here instead of 12, so that a producer soon meets the like of a claim it once looked at (rule 4).
 *
 * Waits have no time limit: nobody looks again after a while, no byte is repeated. So a lost wake-up is a deadlock. Only stealing happens at any time.
 *
 * Checked: an answer is computed from the asker's own row; a producer writes only into a slab of the generation it joined, and only under its claim; a
 * slab is run and finished only by who sealed it; no claim is held in a slab that is freed; and when nothing moves any more, every producer has all its
 * answers, every slab is FREE and nobody waits.
 *
 * BROKEN_SEAL, BROKEN_WAKE, BROKEN_STEAL, BROKEN_GENERATION, BROKEN_SPACE, BROKEN_ALARM and BROKEN_FINISH each take one precaution
 * away; the checker has to object.
 */

#ifndef SLABS
#define SLABS 1
#endif
#ifndef CONSUMERS
#define CONSUMERS 2
#endif
#ifndef REQUESTS_0
#define REQUESTS_0 1
#endif
#ifndef REQUESTS_1
#define REQUESTS_1 1
#endif
#ifndef DEATHS
#define DEATHS 0
#endif

#ifndef MORTAL_PRODUCER
#define MORTAL_PRODUCER 1
#endif
#ifndef MORTAL_CONSUMER
#define MORTAL_CONSUMER 1
#endif

#define CLAIMS 2
#define PRODUCERS 2

/* States of a slab. */
#define FREE 0
#define FILLING 1
#define OPEN 2
#define SEALED 3
#define RUNNING 4
#define DONE 5
#define FREEING 6

/* States of a claim. */
#define EMPTY 0
#define CLAIMED 1
#define READY 2
#define RELEASED 3
#define STOLEN 4
#define SEAL 5

#define NOBODY 0
#define SUPERVISOR 7
#define LOW(generation) ((generation) & 1)
#define AT(slab, n) ((slab) * CLAIMS + (n))

/* Slab word: state, owner, generation. Beside it the full generation. */
byte state[SLABS];
byte owner[SLABS];
byte wordGeneration[SLABS];
byte generation[SLABS];

/* Claim word: state, owner, low bits of the generation. And the row, and its result. */
byte claim[SLABS * CLAIMS];
byte claimOwner[SLABS * CLAIMS];
bit claimLow[SLABS * CLAIMS];
byte row[SLABS * CLAIMS];
byte result[SLABS * CLAIMS];

/* Lines of the ingresses. A byte in the pipe is a bit: more of them say the same. */
bit bell[PRODUCERS];
bit pipe[PRODUCERS];
bit waiting[PRODUCERS];

/* Lines of the instances: the sleep word, and whether the thread sleeps in the kernel. */
bit sleepWord[CONSUMERS];
bit asleep[CONSUMERS];

/* Life and death, how many of these there may be: producers first, then consumers. `left` are the requests a producer has still to make, over all its lives. */
byte left[PRODUCERS];
byte life[PRODUCERS];
byte deaths = DEATHS;
bit dead[PRODUCERS + CONSUMERS];
bit finished[PRODUCERS];

/* Distinguishes every request of every life. */
#define TAG(me) (1 + (me) + 2 * (left[me] + 4 * life[me]))

#define HELD(at) (claim[at] == CLAIMED || claim[at] == READY || claim[at] == STOLEN)
#define LET_GO(at) (claim[at] == RELEASED STOLEN_TOO(at))
#ifdef BROKEN_STEAL
#define STOLEN_TOO(at) || claim[at] == STOLEN
#else
#define STOLEN_TOO(at)
#endif
#define MARKER(at) (claim[at] == SEAL || claim[at] == EMPTY)
#define ALL_RELEASED(slab) \
  (MARKER(AT(slab, 0)) || (LET_GO(AT(slab, 0)) && (MARKER(AT(slab, 1)) || LET_GO(AT(slab, 1)))))
#define NONE_HELD(slab) (!HELD(AT(slab, 0)) && (MARKER(AT(slab, 0)) || !HELD(AT(slab, 1))))

/*
 * With COARSE nobody else takes a step inside a GROUP; a process may die inside it all the same. For the runs with deaths, which would else take too
 * many states: the runs without look at every interleaving.
 */
#ifdef COARSE
#define GROUP atomic
#else
#define GROUP
#endif

/*
 * The end of every step that others can see: here its process may die. Dying later, before the next such step, would look the same to the others. Of
 * the producers and of the consumers only the first may be mortal: the others are like it.
 */
#if DEATHS > 0
#define MAY_DIE \
  if \
  :: mortal && deaths > 0 -> deaths--; goto dying \
  :: true \
  fi
#else
#define MAY_DIE skip
#endif

/* The bell first, then the byte. Who has finished hears nothing. */
inline ring(to) {
  GROUP {
    atomic { was = bell[to] || finished[to]; bell[to] = !finished[to]; MAY_DIE }
    if
    :: !was -> atomic { pipe[to] = 1; MAY_DIE }
    :: else
    fi;
    was = 0
  }
}

inline ringWaiting() {
  GROUP {
    if
    :: waiting[0] -> ring(0)
    :: else
    fi;
    if
    :: waiting[1] -> ring(1)
    :: else
    fi
  }
}

/* Wakes one sleeper: the word first, then the futex. */
inline wakeInstance() {
  GROUP {
    q = 0;
    do
    :: q == CONSUMERS -> break
    :: q < CONSUMERS && !sleepWord[q] -> q++
    :: atomic { q < CONSUMERS && sleepWord[q] -> sleepWord[q] = 0; MAY_DIE }
       atomic { asleep[q] = 0; MAY_DIE }
       break
    od;
    q = 0
  }
}

/* What is cleared here nobody may look at again; it would only tell states apart that are the same. */
inline finishFreeing(slab) {
  atomic {
    assert(state[slab] == FREEING && NONE_HELD(slab));
    state[slab] = FREE;
    owner[slab] = NOBODY;
    row[AT(slab, 0)] = 0; row[AT(slab, 1)] = 0;
    result[AT(slab, 0)] = 0; result[AT(slab, 1)] = 0;
    claimOwner[AT(slab, 0)] = 0;
    MAY_DIE
  }
}

/* In a slab that is DONE a claim can only be let go, so looking at them one by one is as good as at once. */
inline freeIfDone(slab, who) {
  if
  :: GROUP {
       atomic { state[slab] == DONE && ALL_RELEASED(slab) -> state[slab] = FREEING; owner[slab] = who; MAY_DIE }
       finishFreeing(slab);
       ringWaiting()
     }
  :: else
  fi
}

/* Puts the end marker into the first claim not taken; leaves the number of those before it in n. */
inline closeClaims(slab) {
  n = 0;
  do
  :: n == CLAIMS || claim[AT(slab, n)] == SEAL -> break
#ifdef BROKEN_SEAL
  :: n < CLAIMS && claim[AT(slab, n)] == EMPTY -> claim[AT(slab, n)] = SEAL; break
#else
  :: atomic { n < CLAIMS && claim[AT(slab, n)] == EMPTY -> claim[AT(slab, n)] = SEAL; MAY_DIE } break
#endif
  :: n < CLAIMS && claim[AT(slab, n)] != EMPTY && claim[AT(slab, n)] != SEAL -> n++
  od
}

/* Moves a claim to RELEASED, if it still is that claim. */
inline releaseWord(at, who, low) {
  atomic {
    if
    :: HELD(at) && claimOwner[at] == who && claimLow[at] == low -> claim[at] = RELEASED; MAY_DIE
    :: else
    fi
  }
}

proctype Producer(byte me; bit mortal) {
  byte slab, n, mine, q;
  bit was, looks;

next:
  slab = 0; n = 0; mine = 0;
  if
  :: left[me] == 0 -> goto over
  :: else
  fi;
#ifdef LOOK
  if
  :: skip
  :: atomic { bell[me] = 1; looks = 1; MAY_DIE } wakeInstance() /* silence() for earlier requests of the turn, before the end of it */
  fi;
#endif

place:
  slab = 0;
search:
  n = 0;
  do
  :: slab == SLABS -> goto open
  :: slab < SLABS && state[slab] != OPEN -> slab++
  :: atomic { slab < SLABS && state[slab] == OPEN -> mine = wordGeneration[slab] } break
  od;

  /* join(): from here on everything may have changed, any number of times. */
  do
  :: n == CLAIMS || claimLow[AT(slab, n)] != LOW(mine) || claim[AT(slab, n)] == SEAL -> slab++; goto search
  :: n < CLAIMS && claimLow[AT(slab, n)] == LOW(mine) && claim[AT(slab, n)] >= CLAIMED && claim[AT(slab, n)] <= STOLEN -> n++
  :: atomic {
       n < CLAIMS && claimLow[AT(slab, n)] == LOW(mine) && claim[AT(slab, n)] == EMPTY ->
       claim[AT(slab, n)] = CLAIMED;
       claimOwner[AT(slab, n)] = me;
       MAY_DIE
     }
     break
  od;
#ifndef BROKEN_GENERATION
  if
  :: generation[slab] != mine -> goto giveBack /* another one with the same low bits */
  :: generation[slab] == mine
  fi;
#endif
  atomic { /* copy() */
    assert(generation[slab] == mine && claimOwner[AT(slab, n)] == me);
    assert(claim[AT(slab, n)] == CLAIMED || claim[AT(slab, n)] == STOLEN);
    assert(state[slab] >= OPEN && state[slab] <= DONE);
    row[AT(slab, n)] = TAG(me);
    MAY_DIE
  }
  atomic { /* publish() */
    if
    :: claim[AT(slab, n)] == CLAIMED && claimOwner[AT(slab, n)] == me && claimLow[AT(slab, n)] == LOW(mine) ->
       claim[AT(slab, n)] = READY;
       MAY_DIE;
       goto placed
    :: else /* stolen */
    fi
  }
giveBack:
  releaseWord(AT(slab, n), me, LOW(mine));
  freeIfDone(slab, 1 + me);
  slab++;
  goto search;

open:
  slab = 0; n = 0;
  do
  :: slab == SLABS -> goto noSpace
  :: slab < SLABS && state[slab] != FREE -> slab++
  :: atomic { slab < SLABS && state[slab] == FREE -> state[slab] = FILLING; owner[slab] = 1 + me; MAY_DIE } break
  od;
  GROUP {
    atomic { generation[slab]++; mine = generation[slab]; MAY_DIE }
    atomic { claim[AT(slab, 1)] = EMPTY; claimLow[AT(slab, 1)] = LOW(mine); claimOwner[AT(slab, 1)] = 0; MAY_DIE }
    atomic {
      row[AT(slab, 0)] = TAG(me);
      claim[AT(slab, 0)] = READY;
      claimLow[AT(slab, 0)] = LOW(mine);
      claimOwner[AT(slab, 0)] = me;
      MAY_DIE
    }
    atomic {
      assert(state[slab] == FILLING && owner[slab] == 1 + me);
      state[slab] = OPEN;
      owner[slab] = NOBODY;
      wordGeneration[slab] = mine;
      MAY_DIE
    }
  }

placed:
#ifdef LOOK
  if
  :: skip
  :: atomic { !looks -> bell[me] = 1; looks = 1; MAY_DIE } /* silence() */
  fi;
#endif
  wakeInstance();
  if
  :: waiting[me] -> atomic { waiting[me] = 0; MAY_DIE }
  :: else
  fi;
#ifdef LOOK
  if
  :: looks -> looks = 0;
#ifndef BROKEN_LOOK
     atomic { bell[me] = 0; MAY_DIE } /* hear() */
#endif
     if /* poll() */
     :: state[slab] == DONE && wordGeneration[slab] == mine -> goto take
     :: else
     fi
  :: else
  fi;
#endif
  goto await;

noSpace:
  slab = 0;
  if
#ifdef BROKEN_SPACE
  :: !waiting[me] -> atomic { waiting[me] = 1; MAY_DIE }
#else
  :: !waiting[me] -> atomic { waiting[me] = 1; MAY_DIE } goto place /* space may have come free before the flag */
#endif
  :: else
  fi;
#ifdef LOOK
  if
  :: looks -> looks = 0; atomic { bell[me] = 0; MAY_DIE } goto place /* the end of the turn: hear() and poll() */
  :: else
  fi;
#endif
  GROUP {
    atomic { pipe[me] -> pipe[me] = 0; MAY_DIE }
    atomic { bell[me] = 0; MAY_DIE } /* hear() */
  }
  goto place;

await:
  if
  :: GROUP {
       atomic { pipe[me] -> pipe[me] = 0; MAY_DIE }
       atomic { bell[me] = 0; MAY_DIE } /* hear() */
     }
     if /* poll() */
     :: state[slab] == DONE && wordGeneration[slab] == mine
     :: else -> goto await
     fi
#ifdef ABANDON
  :: goto release /* abandon() */
#endif
  fi;

#ifdef LOOK
take:
#endif
  assert(result[AT(slab, n)] == TAG(me));

#ifdef ABANDON
release:
#endif
  left[me]--;
  releaseWord(AT(slab, n), me, LOW(mine));
  freeIfDone(slab, 1 + me);
  goto next;

#if DEATHS > 0
dying:
  atomic { dead[me] = 1; life[me]++; slab = 0; n = 0; mine = 0; q = 0; was = 0; looks = 0 }
  !dead[me];
  goto next;
#endif

over:
  atomic { finished[me] = 1; pipe[me] = 0; bell[me] = 0 }
}

proctype Consumer(byte me; bit mortal) {
  byte slab, n, count, q, owners;
  bit was;

look:
  slab = 0; n = 0; count = 0; owners = 0;
  do
  :: slab == SLABS -> goto idle
  :: slab < SLABS && state[slab] != OPEN -> slab++
  :: atomic { slab < SLABS && state[slab] == OPEN -> state[slab] = SEALED; owner[slab] = 1 + PRODUCERS + me; MAY_DIE } break
  od;
  closeClaims(slab);
  count = n;
  n = 0;
  do /* awaitCopies(): a steal may come at any time */
  :: n == count -> break
  :: n < count && claim[AT(slab, n)] != CLAIMED -> n++
  :: atomic { n < count && claim[AT(slab, n)] == CLAIMED -> claim[AT(slab, n)] = STOLEN; MAY_DIE }
  od;
  n = 0;
  atomic { /* run, and settle */
    assert(state[slab] == SEALED && owner[slab] == 1 + PRODUCERS + me);
    state[slab] = RUNNING;
    do
    :: n < count ->
       result[AT(slab, n)] = row[AT(slab, n)];
       owners = owners | (1 << claimOwner[AT(slab, n)]);
       n++
    :: n == count -> break
    od;
    n = 0;
    count = 0;
    MAY_DIE
  }
  atomic { /* finish() */
    assert(state[slab] == RUNNING && owner[slab] == 1 + PRODUCERS + me);
    state[slab] = DONE;
    owner[slab] = NOBODY;
    MAY_DIE
  }
  GROUP {
    if
    :: owners & 1 -> ring(0)
    :: else
    fi;
    if
    :: owners & 2 -> ring(1)
    :: else
    fi;
    owners = 0
  }
  freeIfDone(slab, 1 + PRODUCERS + me);
  goto look;

idle:
  slab = 0;
  GROUP {
    atomic { sleepWord[me] = 1; MAY_DIE }
#ifndef BROKEN_WAKE
    do
    :: slab == SLABS -> break
    :: slab < SLABS && state[slab] == OPEN -> atomic { sleepWord[me] = 0; MAY_DIE } goto look
    :: slab < SLABS && state[slab] != OPEN -> slab++
    od;
#endif
    slab = 0;
    asleep[me] = sleepWord[me] /* futex: sleeps only if the word still is what it was */
  }
endAsleep:
  !asleep[me];
  if
  :: sleepWord[me] -> atomic { sleepWord[me] = 0; MAY_DIE }
  :: else
  fi;
  goto look;

#if DEATHS > 0
dying:
  atomic { dead[PRODUCERS + me] = 1; asleep[me] = 0; slab = 0; n = 0; count = 0; q = 0; owners = 0; was = 0 }
  !dead[PRODUCERS + me];
  goto look
#endif
}

#if DEATHS > 0
/* Repeats every wake-up that the dead one may have owed. */
inline wakeForTheDead() {
  GROUP {
#ifndef BROKEN_ALARM
    q = 0;
    do
    :: q == PRODUCERS -> break
    :: q < PRODUCERS -> d_step { bell[q] = !finished[q]; pipe[q] = !finished[q] } q++
    od;
#endif
    q = 0;
    do
    :: q == CONSUMERS -> break
    :: q < CONSUMERS -> sleepWord[q] = 0; asleep[q] = 0; q++
    od;
    q = 0
  }
}

active proctype Supervisor() {
  byte who, slab, n, q;
  bit was, mortal;

endIdle:
  if
  :: dead[0] -> who = 0
  :: dead[1] -> who = 1
  :: dead[2] -> who = 2
#if CONSUMERS > 1
  :: dead[3] -> who = 3
#endif
  fi;
  if
  :: who < PRODUCERS -> goto ingress
  :: else -> goto instance
  fi;

ingress:
  do
  :: slab == SLABS -> break
  :: slab < SLABS ->
     if
     :: owner[slab] == 1 + who && state[slab] == FILLING ->
        GROUP {
          generation[slab]++;
          d_step { state[slab] = FREE; owner[slab] = NOBODY; wordGeneration[slab] = generation[slab] }
        }
     :: owner[slab] == 1 + who && state[slab] == FREEING -> finishFreeing(slab)
     :: owner[slab] != 1 + who && state[slab] >= OPEN && state[slab] <= DONE ->
        GROUP {
          n = 0;
          do /* releaseClaims() */
          :: n == CLAIMS || MARKER(AT(slab, n)) -> break
          :: n < CLAIMS && !MARKER(AT(slab, n)) -> releaseWord(AT(slab, n), who, LOW(generation[slab])); n++
          od;
          n = 0
        }
        freeIfDone(slab, SUPERVISOR)
     :: owner[slab] != 1 + who && (state[slab] < OPEN || state[slab] > DONE)
     fi;
     slab++
  od;
  GROUP {
    waiting[who] = 0;
    wakeForTheDead();
    bell[who] = 0;
    dead[who] = 0
  }
  goto reclaimed;

instance:
  do
  :: slab == SLABS -> break
  :: slab < SLABS ->
     if
#ifdef BROKEN_FINISH
     :: state[slab] == DONE
#else
     :: state[slab] == DONE -> freeIfDone(slab, SUPERVISOR) /* between its finish() and its look at the claims it may have died */
#endif
     :: owner[slab] == 1 + who && state[slab] == FREEING -> finishFreeing(slab)
     :: owner[slab] == 1 + who && (state[slab] == SEALED || state[slab] == RUNNING) ->
        GROUP {
          closeClaims(slab);
          n = 0;
          d_step { state[slab] = OPEN; owner[slab] = NOBODY }
        }
     :: owner[slab] != 1 + who && state[slab] != DONE
     fi;
     slab++
  od;
  GROUP {
    sleepWord[who - PRODUCERS] = 0;
    wakeForTheDead();
    dead[who] = 0
  }

reclaimed:
  who = 0; slab = 0;
  goto endIdle;
dying:
  assert(false) /* the supervisor is not mortal: the others die with it */
}
#endif

/* When nothing moves any more. */
active proctype Rest() {
  byte slab;
  timeout;
  d_step {
    assert(finished[0] && finished[1]);
    assert(!waiting[0] && !waiting[1]);
    do
    :: slab == SLABS -> break
    :: slab < SLABS -> assert(state[slab] == FREE && owner[slab] == NOBODY); slab++
    od
  }
}

init {
  d_step {
    byte n;
    do
    :: n == SLABS * CLAIMS -> break
    :: n < SLABS * CLAIMS -> claim[n] = SEAL; n++
    od;
    n = 0;
    left[0] = REQUESTS_0;
    left[1] = REQUESTS_1
  }
  atomic {
    run Producer(0, MORTAL_PRODUCER);
    run Producer(1, 0);
    run Consumer(0, MORTAL_CONSUMER);
#if CONSUMERS > 1
    run Consumer(1, 0)
#endif
  }
}
