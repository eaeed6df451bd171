# SPDX-License-Identifier: MIT
"""Programs: `jspec NAME ...`, also `python -m jspec.NAME ...`.

A file here declares the flags of one program and hands plain values to the
package that does the work. Nothing heavy is imported until a program runs.
"""
