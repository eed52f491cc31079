"""Lays trees and open files out for writing."""
