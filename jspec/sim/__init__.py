# SPDX-License-Identifier: MIT
"""A simulator of serving: acceptance x costs x arrivals, without a model.

  acceptance   how likely each draft of each request is accepted
  costs        seconds of a round on a machine, by rows and nodes
  traces       when requests arrive, and how long they are
  run          rounds of a batch under one depth policy
  compare      several policies on the same random numbers
  published    the tables of papers, simulated

A machine is planned with it before there is one: measure or read a few round
times, say how often drafts are accepted, and see which policy is worth what.
"""
